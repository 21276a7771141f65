//! Tests of the job's variables in the environment, and of jobs of one process.

use super::*;

fn variables(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    let set: Vec<(String, String)> =
        set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    move |name| set.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
}

fn join(get: Get<'_>) -> Result<Job, Error> {
    Job::from_variables(get, &|| Ok(Vec::new()), false)
}

/// The test passes although libpmix may be absent, because libpmix is not loaded under raised rights.
#[test]
fn under_raised_rights_nobody_joins_the_job_of_pmix() {
    let set = variables(&[("PMIX_NAMESPACE", "tieline.test"), ("PMIX_RANK", "0")]);
    let error = Job::from_variables(&set, &|| Ok(Vec::new()), true).unwrap_err();
    assert_eq!(error.status(), Status::Permission, "{error}");
    assert!(error.to_string().contains("this process runs with raised rights"), "{error}");
}

#[test]
fn without_a_launcher_the_job_is_one_process() {
    let job = join(&variables(&[])).unwrap();
    assert_eq!((job.rank(), job.size()), (0, 1));
    assert_eq!(job.exchange(b"me").unwrap(), vec![b"me".to_vec()]);
    job.barrier().unwrap();
}

/// An exchange whose peers arrive when this process has made progress, or has disconnected.
struct Awaited(Mutex<std::sync::mpsc::Receiver<()>>);

impl Exchange for Awaited {
    fn allgather(&self, mine: &[u8], _: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let _ = self.0.lock().unwrap().recv();
        Ok(vec![mine.to_vec(); 2])
    }

    fn publish(&self, _: u32, _: &[u8], _: &Deadline) -> Result<(), Error> {
        Err(Error::from_status(Status::Unsupported))
    }

    fn lookup(&self, _: usize, _: u32, _: &Deadline) -> Result<Vec<u8>, Error> {
        Err(Error::from_status(Status::Unsupported))
    }
}

#[test]
fn barrier_makes_progress_until_all_arrive_and_returns_its_error() {
    let awaited = || {
        let (came, comes) = std::sync::mpsc::channel();
        let mut job = join(&variables(&[])).unwrap();
        job.exchange = Arc::new(Awaited(Mutex::new(comes)));
        (job, came)
    };
    let (job, came) = awaited();
    let mut calls = 0;
    let met = job.barrier_while(|| {
        calls += 1;
        if calls == 3 {
            came.send(()).unwrap();
        }
        Ok(())
    });
    assert!(met.is_ok() && calls >= 3, "{met:?} after {calls}");

    let (job, came) = awaited();
    let mut calls = 0;
    let met = job.barrier_while(|| {
        calls += 1;
        came.send(()).unwrap();
        Err(Error::from_status(Status::NoMemory))
    });
    assert_eq!((met.unwrap_err().status(), calls), (Status::NoMemory, 1));
}

/// An exchange that records the threads that have waited in it.
#[derive(Default)]
struct Threads(Mutex<Vec<std::thread::ThreadId>>);

impl Exchange for Threads {
    fn allgather(&self, mine: &[u8], _: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        self.0.lock().unwrap().push(std::thread::current().id());
        Ok(vec![mine.to_vec()])
    }

    fn publish(&self, _: u32, _: &[u8], _: &Deadline) -> Result<(), Error> {
        Err(Error::from_status(Status::Unsupported))
    }

    fn lookup(&self, _: usize, _: u32, _: &Deadline) -> Result<Vec<u8>, Error> {
        Err(Error::from_status(Status::Unsupported))
    }
}

#[test]
fn one_thread_waits_in_all_barriers_of_a_job_and_ends_with_it() {
    let threads = Arc::new(Threads::default());
    let mut job = join(&variables(&[])).unwrap();
    job.exchange = threads.clone();
    for _ in 0..3 {
        job.barrier_while(|| Ok(())).unwrap();
    }
    let waited = threads.0.lock().unwrap().clone();
    assert_eq!(waited, [waited[0]; 3]);
    assert_ne!(waited[0], std::thread::current().id());
    drop(job);
    assert_eq!(Arc::strong_count(&threads), 1, "its thread is gone, and what that held");
}

#[test]
fn process_sleeping_in_barrier_is_woken_once_when_all_arrive() {
    let (came, comes) = std::sync::mpsc::channel();
    let (wake, woken) = std::sync::mpsc::channel();
    let mut job = join(&variables(&[])).unwrap();
    job.exchange = Arc::new(Awaited(Mutex::new(comes)));
    let met = job.barrier_woken(
        move || wake.send(()).unwrap(),
        |is_over| {
            assert!(!is_over());
            came.send(()).unwrap();
            woken.recv().unwrap();
            assert!(is_over());
            Ok(())
        },
    );
    assert!(met.is_ok(), "{met:?}");
    assert!(woken.recv().is_err(), "its waker is gone");
}

#[test]
fn variables_that_contradict_each_other_are_refused_by_name() {
    for (set, says) in [
        (&[("TIELINE_RANK", "0")][..], "TIELINE_SIZE is not set"),
        (&[("TIELINE_RANK", "x"), ("TIELINE_SIZE", "2")], "TIELINE_RANK is `x`"),
        (&[("TIELINE_RANK", "2"), ("TIELINE_SIZE", "2")], "ranks run from 0"),
        (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "2")], "TIELINE_BOOTSTRAP is not set"),
    ] {
        let error = join(&variables(set)).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_number_beyond_reason_is_an_error_that_names_its_variable() {
    let step = [("SLURM_JOB_ID", "1"), ("SLURM_STEP_NODELIST", "127.0.0.1")];
    for (set, says) in [
        (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "4000000000")][..], "TIELINE_SIZE"),
        (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "18446744073709551615")], "TIELINE_SIZE"),
        (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "99999999999999999999")], "TIELINE_SIZE"),
        (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4000000000")], "NUM_TASKS"),
        (&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4000000000")], "OMPI"),
        (
            &[
                ("SLURM_PROCID", "0"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_LOCALID", "4000000000"),
            ],
            "SLURM_LOCALID",
        ),
    ] {
        let meet = [("TIELINE_BOOTSTRAP", "127.0.0.1:9"), ("TIELINE_BOOTSTRAP_TIMEOUT", "1s")];
        let error = join(&variables(&[set, &step, &meet].concat())).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_launcher_that_is_gone_is_an_error_and_not_a_wait() {
    let set = [
        ("TIELINE_RANK", "0"),
        ("TIELINE_SIZE", "2"),
        ("TIELINE_EXCHANGE", "unix:@tieline-nobody-listens-here"),
    ];
    let error = join(&variables(&set)).unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed);
}

#[test]
fn too_much_is_refused_and_the_exchange_lives_on() {
    let job = join(&variables(&[])).unwrap();
    let error = job.exchange(&vec![0; wire::MAX_CONTRIBUTION + 1]).unwrap_err();
    assert_eq!(error.status(), Status::TooLarge);
    job.barrier().unwrap();
}

/// A waiting process needs the number of processes that share this host's processors. The test runs as a separate process, because
/// the joined jobs and the environment are global to the process.
#[test]
fn local_process_count_is_known_before_and_after_joining() {
    const ROLE: &str = "TIELINE_JOB_TEST_OF_PROCESSES";
    if std::env::var_os(ROLE).is_some() {
        assert_eq!((processes_on_this_host(), joined_processes()), (3, 0));
        let job = Job::from_env().unwrap();
        assert_eq!((job.local_size(), joined_processes()), (3, 3));
        return;
    }
    let name = "tests::local_process_count_is_known_before_and_after_joining";
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let output = alone
        .args(["--exact", name, "--nocapture"])
        .envs([(ROLE, "1"), ("TIELINE_RANK", "0"), ("TIELINE_SIZE", "1")])
        .envs([("TIELINE_LOCAL_RANK", "0"), ("TIELINE_LOCAL_SIZE", "3")])
        .env("TIELINE_BOOTSTRAP", "127.0.0.1:9")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The held descriptor is like that of a forked child that outlives its parent's job.
#[test]
fn bootstrap_address_is_free_while_a_child_holds_an_ended_jobs_listener() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let name = local::name("rendezvous", &free.to_string());
    let held = SocketAddr::from_abstract_name(name).unwrap();
    let held = UnixListener::bind_addr(&held).unwrap();
    tieline_net::stop_listening(&held);
    let start = |rank: &'static str, limit: &'static str| {
        std::thread::spawn(move || {
            let (address, size) = (free.to_string(), ("TIELINE_SIZE", "2"));
            let at = ("TIELINE_BOOTSTRAP", &*address);
            let limit = ("TIELINE_BOOTSTRAP_TIMEOUT", limit);
            join(&variables(&[at, ("TIELINE_RANK", rank), size, limit]))
        })
    };
    let (zero, one) = (start("0", "60s"), start("1", "60s"));
    let (zero, one) = (zero.join().unwrap().unwrap(), one.join().unwrap().unwrap());
    let refused = start("0", "1s").join().unwrap().expect_err("a job lives at this address");
    assert!(refused.fix().contains("choose another port"), "{refused}");
    let other = std::thread::spawn(move || one.barrier());
    zero.barrier().unwrap();
    other.join().unwrap().unwrap();
    drop(held);
}

#[test]
fn a_forked_child_neither_uses_nor_ends_the_job_of_its_parent() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let start = |rank: &'static str| {
        std::thread::spawn(move || {
            let (address, size) = (free.to_string(), "2");
            let set = [("TIELINE_RENDEZVOUS", &*address), ("TIELINE_RANK", rank)];
            join(&variables(&[set[0], set[1], ("TIELINE_SIZE", size)])).unwrap()
        })
    };
    let (zero, one) = (start("0"), start("1"));
    let (zero, one) = (zero.join().unwrap(), one.join().unwrap());
    let mut served = Some(zero);
    assert!(tieline_testing::holds_in_child(|| {
        let job = served.take().unwrap();
        let refused = [
            job.barrier(),
            job.publish(1, b"the child's"),
            job.lookup(1, 1).map(drop),
            job.barrier_while(|| Ok(())),
        ];
        drop(job);
        refused.iter().all(|told| told.as_ref().is_err_and(|e| e.status() == Status::Invalid))
    }));
    let zero = served.expect("the child has taken its copy");
    let other = std::thread::spawn(move || one.barrier());
    zero.barrier().unwrap();
    other.join().unwrap().unwrap();
}
