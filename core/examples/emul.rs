//! Rates of emulated operations between two contexts of one process.
use std::sync::mpsc::channel;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Instant;
use tieline::{Access, Context};
fn open() -> Context {
    Context::builder().open().unwrap()
}
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    s.split(' ').next().and_then(|x| x.parse::<f64>().ok()).unwrap_or(0.0)
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let put = args[1] == "put";
    let owned = args.get(4).is_some_and(|a| a == "owned");
    let len: usize = args[2].parse().unwrap();
    let count: usize = args[3].parse().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (tx, rx) = channel();
    let done = stop.clone();
    let owner = std::thread::spawn(move || {
        let context = open();
        let worker = context.worker().unwrap();
        let memory = vec![1u8; len.max(4096)].into_boxed_slice();
        let n = memory.len();
        let region = if owned { context.register(memory).unwrap() } else {
            let p = Box::leak(memory);
            #[allow(unsafe_code)]
            unsafe { context.register_raw(p.as_mut_ptr(), n, Access::ALL).unwrap() }
        };
        tx.send((worker.address().unwrap(), region.remote_key().unwrap())).unwrap();
        let waits = std::env::var_os("WAITS").is_some();
        while !done.load(SeqCst) { if waits { let _ = worker.wait(Some(std::time::Duration::from_millis(50))).unwrap(); } else { let _ = worker.progress(); } }
        eprintln!("owner cpu_ns {}", std::fs::read_to_string("/proc/thread-self/schedstat").unwrap().split(' ').next().unwrap().parse::<f64>().unwrap());
    });
    let context = open();
    let worker = context.worker().unwrap();
    let (address, key) = rx.recv().unwrap();
    let endpoint = worker.connect(&address).unwrap();
    let key = endpoint.import_key(&key).unwrap();
    eprintln!("{}", key.path());
    let local = context.register(vec![3u8; len]).unwrap();
    let many: usize = std::env::var("MANY").ok().and_then(|m| m.parse().ok()).unwrap_or(1);
    let one = || {
        if many > 1 {
            let mut all = Vec::new();
            for _ in 0..many { let o = if put { endpoint.put(&local, 0..len, &key, 0) } else { endpoint.get(&local, 0..len, &key, 0) }; all.push(o.unwrap()); }
            for o in all { let _ = worker.finish(o).unwrap(); }
            return;
        }
        let outcome = if put { endpoint.put(&local, 0..len, &key, 0) } else { endpoint.get(&local, 0..len, &key, 0) };
        let _ = worker.finish(outcome.unwrap()).unwrap();
    };
    for _ in 0..count / 10 + 1 { one(); }
    let _ = cpu();
    let begin = Instant::now();
    for _ in 0..count { one(); }
    let ns = begin.elapsed().as_nanos() as f64 / count as f64 / many as f64;
    println!("{} {len}: {ns:.0} ns, {:.1} MB/s", args[1], len as f64 * 1e3 / ns);
    stop.store(true, SeqCst);
    let _ = owner.join();
}
