/* The part of the Python module that runs for each message and each put: `tieline._native`, for the stable ABI of Python 3.9 and later.
 *
 * A call through ctypes costs about five times as much as a call of this file (docs/python.md has the figures), and Python prints an
 * exception that arrives at the start of a ctypes callback. All other calls of the library go through ctypes (`tieline/_c.py`).
 *
 * This file is linked with neither the library nor Python's buffer functions: `bind` receives their addresses. The buffer functions
 * are in the stable ABI since Python 3.11 only, but they and `struct exported` are the same in 3.9 and 3.10.
 *
 * Lock: every function holds Python's lock (GIL), except where Py_BEGIN_ALLOW_THREADS releases it. Callbacks acquire it.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tieline.h"

/* The calling convention exists since Python 3.7, and is in the stable ABI since 3.10. */
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif
#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL

/* Py_buffer of Python. */
struct exported {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
};

/* The functions that `bind` receives, in this order. */
static struct {
    int (*get_buffer)(PyObject *, struct exported *, int);
    void (*release_buffer)(struct exported *);
    int32_t (*last_error)(struct tieline_error *);
    int32_t (*progress)(const void *);
    int32_t (*wait_until)(const void *, int32_t (*)(void *), void *, int64_t);
    int32_t (*wait)(const void *, int64_t);
    int32_t (*finish)(const void *, uint64_t, int64_t, uint64_t *);
    int32_t (*take_completed)(const void *, struct tieline_completed *, size_t, size_t, size_t *);
    int32_t (*send)(const void *, uint16_t, uint64_t, const void *, size_t, const void *, uint64_t *);
    int32_t (*send_with)(const void *, uint16_t, uint64_t, const void *, size_t, const struct tieline_send_options *, const void *,
                         uint64_t *);
    int32_t (*lend)(const void *, void *, size_t, void **);
    int32_t (*close_region)(void *);
    int32_t (*put_bytes)(const void *, uint64_t, const void *, size_t, const void *, uint64_t *);
    int32_t (*put)(const void *, uint64_t, const void *, size_t, size_t, const void *, uint64_t *);
    int32_t (*get)(const void *, uint64_t, const void *, size_t, size_t, const void *, uint64_t *);
    int32_t (*message_peer)(const void *, uint32_t *);
    int32_t (*message_header_bytes)(const void *, void *, size_t *);
    int32_t (*message_announcement)(const void *, void **);
    int32_t (*message_acknowledgement)(const void *, void **);
    int32_t (*announcement_refuse)(void *);
    int32_t (*acknowledgement_drop)(void *);
} lib;

/* Handles that could not be dropped because another thread was in a call of their worker: a list of (kind, handle) for Python. */
static PyObject *left;

/* The length up to which a put copies its bytes, which costs less than a transient registration. */
enum { COPIED = 1024 };
/* The length from which a copy of a payload releases the lock. */
enum { LONG = 32768 };
/* The interval in nanoseconds at which a wait runs Python's signal handlers. */
static const int64_t SIGNALS_NS = 10000000;
/* The longest part of a wait for an operation, in nanoseconds: between two parts, Python's signal handlers run. */
static const int64_t PART_NS = 50000000;

/* Exports the memory of an object. An array of Python objects is refused: its bytes are pointers. */
static int export_bytes(PyObject *object, struct exported *view, int is_writable)
{
    const int format = 4; /* PyBUF_FORMAT */
    int is_name = 0, has_objects = 0;
    if (lib.get_buffer(object, view, format | (is_writable ? 1 : 0)) < 0) {
        return -1;
    }
    for (const char *at = view->format; at != NULL && *at != 0; at++) {
        is_name ^= *at == ':';
        has_objects |= *at == 'O' && !is_name;
    }
    if (has_objects) {
        lib.release_buffer(view);
        PyErr_SetString(PyExc_TypeError, "an array of Python objects has no bytes to transfer");
        return -1;
    }
    return 0;
}

/* ---- A worker ---- */

/* The data path of a worker. `raised` has the exceptions of its handlers, and `handled` is the number of calls of handlers. While
   handlers run, `inside` is their number, and `runner` is their thread. The handlers of a driven worker run in any thread, but never
   at the same time as another one. */
typedef struct {
    PyObject_HEAD
    void *handle;
    PyObject *raised;
    uint64_t handled;
    unsigned long runner;
    int inside;
    /* The number of calls in progress that wait or make progress. Once `ending` is set, they end, and none begins. */
    int calls;
    int ending;
} Engine;

/* The value that this thread's last `finish` has received. */
static _Thread_local uint64_t fetched;

/* A wait in progress. Without a condition, it ends when the number of handled events differs from `handled`. */
struct wait {
    Engine *engine;
    PyObject *condition;
    uint64_t handled;
    int64_t looked_ns;
    int has_raised;
};

/* Whether the worker is about to be closed. Another thread may say so at any time. */
static int is_ending(const Engine *engine)
{
    return __atomic_load_n(&engine->ending, __ATOMIC_RELAXED);
}

/* The number of handled events. Another thread may be in a handler of a driven worker. */
static uint64_t handled_by(const Engine *engine)
{
    return __atomic_load_n(&engine->handled, __ATOMIC_ACQUIRE);
}

/* Moves the current exception to the list of the engine. */
static void store_exception(Engine *engine)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL) {
        if (trace != NULL) {
            (void)PyException_SetTraceback(value, trace);
        }
        (void)PyList_Append(engine->raised, value);
        PyErr_Clear();
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static int engine_init(PyObject *self, PyObject *args, PyObject *words)
{
    Engine *engine = (Engine *)self;
    unsigned long long handle;
    (void)words;
    if (!PyArg_ParseTuple(args, "K", &handle)) {
        return -1;
    }
    engine->handle = (void *)(uintptr_t)handle;
    PyObject *raised = PyList_New(0), *old = engine->raised;
    engine->raised = raised;
    Py_XDECREF(old);
    return raised == NULL ? -1 : 0;
}

static int engine_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Engine *)self)->raised);
    return 0;
}

static int engine_clear(PyObject *self)
{
    Py_CLEAR(((Engine *)self)->raised);
    return 0;
}

/* Frees an object of one of the types of this file, whose references have been cleared. */
static void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void engine_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)engine_clear(self);
    free_object(self);
}

static PyObject *engine_progress(PyObject *self, PyObject *unused)
{
    Engine *engine = (Engine *)self;
    int32_t status = TIELINE_CLOSED;
    (void)unused;
    if (!is_ending(engine)) {
        engine->calls++;
        Py_BEGIN_ALLOW_THREADS
        status = lib.progress(engine->handle);
        Py_END_ALLOW_THREADS
        engine->calls--;
    }
    return PyLong_FromLong(status);
}

static int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The condition of a wait, called without the lock. Also runs Python's signal handlers, and ends the wait after an exception. */
static int32_t is_over(void *user)
{
    struct wait *wait = (struct wait *)user;
    Engine *engine = wait->engine;
    if (is_ending(engine) || (wait->condition == NULL && handled_by(engine) != wait->handled)) {
        return 1;
    }
    int64_t now = now_ns();
    if (wait->condition == NULL && now - wait->looked_ns < SIGNALS_NS) {
        return 0;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    int over = PyErr_CheckSignals();
    wait->looked_ns = now;
    if (over == 0 && wait->condition != NULL && PyList_Size(engine->raised) == 0) {
        PyObject *result = PyObject_CallObject(wait->condition, NULL);
        over = result == NULL ? -1 : PyObject_IsTrue(result);
        Py_XDECREF(result);
    }
    if (over < 0) {
        store_exception(engine);
    }
    wait->has_raised = PyList_Size(engine->raised) > 0;
    over = over != 0 || wait->has_raised;
    PyGILState_Release(state);
    return over;
}

/* wait(condition, timeout_ns): waits until the condition holds; with None, until a handler has run; with a value of `handled`, until
   a handler has run since then. Returns a status, or TIELINE_ROUSED if an exception of a handler has ended the wait. */
static PyObject *engine_wait(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Engine *engine = (Engine *)self;
    int32_t status;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "wait(condition, timeout_ns)");
        return NULL;
    }
    int64_t timeout = PyLong_AsLongLong(args[1]);
    if (timeout == -1 && PyErr_Occurred()) {
        return NULL;
    }
    struct wait wait = {engine, NULL, handled_by(engine), now_ns(), 0};
    if (PyLong_Check(args[0])) {
        wait.handled = PyLong_AsUnsignedLongLong(args[0]);
        if (PyErr_Occurred()) {
            return NULL;
        }
    } else if (args[0] != Py_None) {
        wait.condition = args[0];
    }
    if (is_ending(engine)) {
        return PyLong_FromLong(TIELINE_CLOSED);
    }
    engine->calls++;
    Py_BEGIN_ALLOW_THREADS
    status = lib.wait_until(engine->handle, is_over, &wait, timeout);
    Py_END_ALLOW_THREADS
    engine->calls--;
    if (status == TIELINE_OK && wait.has_raised) {
        status = TIELINE_ROUSED;
    } else if (status == TIELINE_OK && is_ending(engine)) {
        status = TIELINE_CLOSED;
    }
    return PyLong_FromLong(status);
}

/* event(): waits for an event or the completion of a tracked operation, without Python's signal handlers. Returns a status. */
static PyObject *engine_event(PyObject *self, PyObject *unused)
{
    Engine *engine = (Engine *)self;
    int32_t status = TIELINE_CLOSED;
    (void)unused;
    engine->calls++;
    Py_BEGIN_ALLOW_THREADS
    while (!is_ending(engine)) {
        status = lib.wait(engine->handle, PART_NS);
        if (status != TIELINE_TIMED_OUT && status != TIELINE_ROUSED) {
            break;
        }
        status = TIELINE_CLOSED;
    }
    Py_END_ALLOW_THREADS
    engine->calls--;
    return PyLong_FromLong(status);
}

/* end(): ends the calls that wait or make progress, and prevents further ones. Returns the number of those in progress. */
static PyObject *engine_end(PyObject *self, PyObject *unused)
{
    Engine *engine = (Engine *)self;
    (void)unused;
    __atomic_store_n(&engine->ending, 1, __ATOMIC_RELAXED);
    return PyLong_FromLong(engine->calls);
}

/* finish(request, timeout_ns): waits for an operation. Returns its status; `value` then has the value of a fetching atomic. */
static PyObject *engine_finish(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Engine *engine = (Engine *)self;
    int32_t status;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "finish(request, timeout_ns)");
        return NULL;
    }
    uint64_t request = PyLong_AsUnsignedLongLong(args[0]);
    int64_t timeout = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (is_ending(engine)) {
        return PyLong_FromLong(TIELINE_CLOSED);
    }
    engine->calls++;
    for (int64_t part = PART_NS;; timeout -= timeout < 0 ? 0 : part) {
        part = timeout < 0 || timeout > PART_NS ? PART_NS : timeout;
        Py_BEGIN_ALLOW_THREADS
        status = lib.finish(engine->handle, request, part, &fetched);
        Py_END_ALLOW_THREADS
        if (status != TIELINE_TIMED_OUT || (timeout >= 0 && timeout <= part)) {
            break;
        }
        if (is_ending(engine)) {
            status = TIELINE_CLOSED;
            break;
        }
        if (PyErr_CheckSignals() < 0) {
            store_exception(engine);
        }
        if (PyList_Size(engine->raised) > 0) {
            break;
        }
    }
    engine->calls--;
    return PyLong_FromLong(status);
}

/* The fields of an error: (status, kind, what, why, fix, setting, index). */
static PyObject *fields_of(const struct tieline_error *error)
{
    const char *none = "";
    return Py_BuildValue("(iIssszL)", (int)error->status, (unsigned)error->kind, error->what ? error->what : none,
                         error->why ? error->why : none, error->fix ? error->fix : none, error->setting, (long long)error->index);
}

/* completed(list): appends (user, value, status, fields of the error or None) for each completed tracked operation. */
static PyObject *engine_completed(PyObject *self, PyObject *list)
{
    Engine *engine = (Engine *)self;
    int32_t status;
    for (;;) {
        struct tieline_completed ended;
        struct tieline_error error = {.size = sizeof error};
        size_t taken = 0;
        status = lib.take_completed(engine->handle, &ended, sizeof ended, 1, &taken);
        if (status < 0 || taken == 0) {
            break;
        }
        PyObject *fields = Py_None;
        Py_INCREF(Py_None);
        if (ended.status < 0) {
            (void)lib.last_error(&error);
            Py_DECREF(Py_None);
            fields = fields_of(&error);
        }
        PyObject *one = Py_BuildValue("(KKiN)", (unsigned long long)ended.user, (unsigned long long)ended.value, (int)ended.status,
                                      fields);
        if (one == NULL || PyList_Append(list, one) < 0) {
            Py_XDECREF(one);
            return NULL;
        }
        Py_DECREF(one);
    }
    return PyLong_FromLong(status);
}

static PyObject *engine_get_raised(PyObject *self, void *unused)
{
    (void)unused;
    PyObject *raised = ((Engine *)self)->raised;
    Py_INCREF(raised);
    return raised;
}

static PyObject *engine_get_inside(PyObject *self, void *unused)
{
    (void)unused;
    const Engine *engine = (const Engine *)self;
    return PyBool_FromLong(engine->inside > 0 && engine->runner == PyThread_get_thread_ident());
}

static PyObject *engine_get_handled(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(handled_by((const Engine *)self));
}

static PyObject *engine_get_value(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromUnsignedLongLong(fetched);
}

static PyMethodDef engine_methods[] = {
    {"progress", engine_progress, METH_NOARGS, NULL},
    {"wait", FAST(engine_wait), NULL},
    {"event", engine_event, METH_NOARGS, NULL},
    {"end", engine_end, METH_NOARGS, NULL},
    {"finish", FAST(engine_finish), NULL},
    {"completed", engine_completed, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef engine_fields[] = {
    {"raised", engine_get_raised, NULL, NULL, NULL},
    {"inside", engine_get_inside, NULL, NULL, NULL},
    {"handled", engine_get_handled, NULL, NULL, NULL},
    {"value", engine_get_value, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_init, engine_init},       {Py_tp_traverse, engine_traverse}, {Py_tp_clear, engine_clear},
    {Py_tp_dealloc, engine_dealloc}, {Py_tp_methods, engine_methods},   {Py_tp_getset, engine_fields},
    {0, NULL},
};

static PyType_Spec engine_spec = {"tieline._native.Engine", sizeof(Engine), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, engine_slots};

/* ---- Messages ---- */

enum { ENDED, RUNNING, KEPT };

/* A message: while its handler runs, the library's record; after `keep`, what the record held. */
typedef struct {
    PyObject_HEAD
    struct tieline_message record;
    PyObject *worker, *payload, *header_bytes;
    void *announcement, *acknowledgement;
    uint32_t peer;
    int state;
} Arrived;

static int arrived_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Arrived *)self)->worker);
    return 0;
}

static int arrived_clear(PyObject *self)
{
    Py_CLEAR(((Arrived *)self)->worker);
    return 0;
}

/* Remembers a handle that could not be dropped. */
static void leave(const char *kind, void *handle)
{
    PyObject *one = Py_BuildValue("(sK)", kind, (unsigned long long)(uintptr_t)handle);
    if (one == NULL || PyList_Append(left, one) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(one);
}

static void arrived_dealloc(PyObject *self)
{
    Arrived *arrived = (Arrived *)self;
    PyObject_GC_UnTrack(self);
    if (arrived->announcement != NULL && lib.announcement_refuse(arrived->announcement) == TIELINE_BUSY) {
        leave("tieline_announcement_refuse", arrived->announcement);
    }
    if (arrived->acknowledgement != NULL && lib.acknowledgement_drop(arrived->acknowledgement) == TIELINE_BUSY) {
        leave("tieline_acknowledgement_drop", arrived->acknowledgement);
    }
    Py_CLEAR(arrived->worker);
    Py_CLEAR(arrived->payload);
    Py_CLEAR(arrived->header_bytes);
    free_object(self);
}

/* Checks that the message is still there. */
static int is_there(const Arrived *arrived)
{
    if (arrived->state == ENDED) {
        PyErr_SetString(PyExc_ValueError, "a message is there only while its handler runs: call keep() in the handler");
        return 0;
    }
    return 1;
}

static PyObject *arrived_header(PyObject *self, void *unused)
{
    (void)unused;
    const Arrived *arrived = (const Arrived *)self;
    return is_there(arrived) ? PyLong_FromUnsignedLongLong(arrived->record.header) : NULL;
}

static PyObject *arrived_id(PyObject *self, void *unused)
{
    (void)unused;
    const Arrived *arrived = (const Arrived *)self;
    return is_there(arrived) ? PyLong_FromUnsignedLong(arrived->record.id) : NULL;
}

static PyObject *arrived_is_announced(PyObject *self, void *unused)
{
    (void)unused;
    const Arrived *arrived = (const Arrived *)self;
    return is_there(arrived) ? PyBool_FromLong(arrived->record.is_announced != 0) : NULL;
}

static Py_ssize_t arrived_len(PyObject *self)
{
    const Arrived *arrived = (const Arrived *)self;
    return is_there(arrived) ? (Py_ssize_t)arrived->record.len : -1;
}

/* A message of no bytes is true. */
static int arrived_bool(PyObject *self)
{
    (void)self;
    return 1;
}

static PyObject *arrived_payload(PyObject *self, void *unused)
{
    (void)unused;
    Arrived *arrived = (Arrived *)self;
    if (!is_there(arrived)) {
        return NULL;
    }
    if (arrived->payload == NULL) {
        const void *bytes = arrived->record.payload;
        arrived->payload = PyBytes_FromStringAndSize(bytes, bytes == NULL ? 0 : (Py_ssize_t)arrived->record.len);
    }
    Py_XINCREF(arrived->payload);
    return arrived->payload;
}

static PyObject *arrived_peer(PyObject *self, void *unused)
{
    (void)unused;
    Arrived *arrived = (Arrived *)self;
    if (!is_there(arrived)) {
        return NULL;
    }
    if (arrived->state == RUNNING) {
        (void)lib.message_peer(&arrived->record, &arrived->peer);
    }
    return PyLong_FromUnsignedLong(arrived->peer);
}

static PyObject *arrived_header_bytes(PyObject *self, void *unused)
{
    (void)unused;
    Arrived *arrived = (Arrived *)self;
    char bytes[TIELINE_MAX_HEADER_BYTES];
    size_t len = 0;
    if (!is_there(arrived)) {
        return NULL;
    }
    if (arrived->header_bytes == NULL) {
        if (arrived->state == RUNNING) {
            (void)lib.message_header_bytes(&arrived->record, bytes, &len);
        }
        arrived->header_bytes = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len);
    }
    Py_XINCREF(arrived->header_bytes);
    return arrived->header_bytes;
}

static PyObject *arrived_worker(PyObject *self, void *unused)
{
    (void)unused;
    PyObject *worker = ((Arrived *)self)->worker;
    worker = worker == NULL ? Py_None : worker;
    Py_INCREF(worker);
    return worker;
}

/* Takes a handle of the message: the one that `keep` took, or a new one in the handler. Returns a handle, or a status below 0. */
static PyObject *taken(Arrived *arrived, void **kept, int32_t (*take)(const void *, void **))
{
    void *handle = *kept;
    if (!is_there(arrived)) {
        return NULL;
    }
    *kept = NULL;
    if (handle == NULL) {
        int32_t status = arrived->state == RUNNING ? take(&arrived->record, &handle) : TIELINE_INVALID;
        if (status < 0) {
            return PyLong_FromLong(status);
        }
    }
    return PyLong_FromVoidPtr(handle);
}

static PyObject *arrived_take_announcement(PyObject *self, PyObject *unused)
{
    (void)unused;
    return taken((Arrived *)self, &((Arrived *)self)->announcement, lib.message_announcement);
}

static PyObject *arrived_take_acknowledgement(PyObject *self, PyObject *unused)
{
    (void)unused;
    return taken((Arrived *)self, &((Arrived *)self)->acknowledgement, lib.message_acknowledgement);
}

/* Keeps the message beyond its handler. If the argument is true, the sender's acknowledgement waits for the application. */
static PyObject *arrived_keep(PyObject *self, PyObject *acknowledges)
{
    Arrived *arrived = (Arrived *)self;
    int later = PyObject_IsTrue(acknowledges);
    if (later < 0 || !is_there(arrived)) {
        return NULL;
    }
    if (arrived->state == RUNNING) {
        PyObject *payload = arrived_payload(self, NULL), *bytes = arrived_header_bytes(self, NULL);
        Py_XDECREF(payload);
        Py_XDECREF(bytes);
        if (payload == NULL || bytes == NULL) {
            return NULL;
        }
        (void)lib.message_peer(&arrived->record, &arrived->peer);
        if (arrived->record.is_announced != 0 && arrived->announcement == NULL) {
            (void)lib.message_announcement(&arrived->record, &arrived->announcement);
        }
        if (later && arrived->acknowledgement == NULL) {
            (void)lib.message_acknowledgement(&arrived->record, &arrived->acknowledgement);
        }
        arrived->state = KEPT;
    }
    Py_INCREF(self);
    return self;
}

static PyMethodDef arrived_methods[] = {
    {"_keep", arrived_keep, METH_O, NULL},
    {"_take_announcement", arrived_take_announcement, METH_NOARGS, NULL},
    {"_take_acknowledgement", arrived_take_acknowledgement, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef arrived_fields[] = {
    {"header", arrived_header, NULL, "The 64-bit header that the sender passed.", NULL},
    {"id", arrived_id, NULL, "The id that the sender passed.", NULL},
    {"is_announced", arrived_is_announced, NULL,
     "Whether this is a rendezvous message: its bytes are still at the sender, until `take_into` or `data` receives them.", NULL},
    {"payload", arrived_payload, NULL, "The bytes of the message; empty for a rendezvous message.", NULL},
    {"peer", arrived_peer, NULL, "The sender's number in this worker.", NULL},
    {"header_bytes", arrived_header_bytes, NULL, "The header bytes that the sender passed; empty if there are none.", NULL},
    {"_worker", arrived_worker, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot arrived_slots[] = {
    {Py_tp_traverse, arrived_traverse}, {Py_tp_clear, arrived_clear},   {Py_tp_dealloc, arrived_dealloc},
    {Py_tp_methods, arrived_methods},   {Py_tp_getset, arrived_fields}, {Py_mp_length, arrived_len},
    {Py_nb_bool, arrived_bool},         {0, NULL},
};

static PyType_Spec arrived_spec = {"tieline._native.Arrived", sizeof(Arrived), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, arrived_slots};

/* ---- Queues of messages ---- */

/* The length up to which the bytes of a message are copied twice, so that its arrival needs no lock of Python. */
enum { SMALL = 4096 };

/* A message in a queue: what the library's record held; or, if it is longer, its object. */
struct waiting {
    struct waiting *next;
    PyObject *object;
    struct tieline_message record;
    void *announcement, *acknowledgement;
    size_t header_len;
    uint32_t peer;
    char header_bytes[TIELINE_MAX_HEADER_BYTES];
    char payload[];
};

/* The messages of one id, of a worker that one thread at a time uses. Its handler runs no Python. Other threads may look at the queue
   while the worker's thread is in a call without Python's lock, so the list has a lock. If `watched` is set, `wake` is called after
   each message. */
typedef struct {
    PyObject_HEAD
    PyObject *engine, *worker, *type, *wake;
    struct waiting *first, *last;
    Py_ssize_t count;
    int later, watched, ended;
    char lock;
} Queue;

static void lock_queue(Queue *queue)
{
    while (__atomic_test_and_set(&queue->lock, __ATOMIC_ACQUIRE)) {
    }
}

static void unlock_queue(Queue *queue)
{
    __atomic_clear(&queue->lock, __ATOMIC_RELEASE);
}

static int is_watched(const Queue *queue)
{
    return __atomic_load_n(&queue->watched, __ATOMIC_RELAXED);
}

static void push(Queue *queue, struct waiting *one)
{
    one->next = NULL;
    lock_queue(queue);
    if (queue->first == NULL) {
        queue->first = one;
    } else {
        queue->last->next = one;
    }
    queue->last = one;
    queue->count++;
    unlock_queue(queue);
}

static struct waiting *pop(Queue *queue)
{
    lock_queue(queue);
    struct waiting *one = queue->first;
    if (one != NULL) {
        queue->first = one->next;
        queue->count--;
    }
    unlock_queue(queue);
    return one;
}

static int queue_init(PyObject *self, PyObject *args, PyObject *words)
{
    Queue *queue = (Queue *)self;
    PyObject *engine, *worker, *type, *wake;
    int later;
    (void)words;
    if (!PyArg_ParseTuple(args, "OOOOp", &engine, &worker, &type, &wake, &later)) {
        return -1;
    }
    if (queue->engine != NULL) {
        PyErr_SetString(PyExc_TypeError, "a queue is initialized once");
        return -1;
    }
    Py_INCREF(engine);
    Py_INCREF(worker);
    Py_INCREF(type);
    Py_INCREF(wake);
    queue->engine = engine;
    queue->worker = worker;
    queue->type = type;
    queue->wake = wake;
    queue->later = later;
    return 0;
}

static int queue_traverse(PyObject *self, visitproc visit, void *arg)
{
    Queue *queue = (Queue *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(queue->engine);
    Py_VISIT(queue->worker);
    Py_VISIT(queue->type);
    Py_VISIT(queue->wake);
    int status = 0;
    lock_queue(queue);
    for (struct waiting *one = queue->first; one != NULL && status == 0; one = one->next) {
        status = one->object == NULL ? 0 : visit(one->object, arg);
    }
    unlock_queue(queue);
    return status;
}

/* Frees a message that nobody takes. */
static void drop_waiting(struct waiting *one)
{
    if (one->announcement != NULL && lib.announcement_refuse(one->announcement) == TIELINE_BUSY) {
        leave("tieline_announcement_refuse", one->announcement);
    }
    if (one->acknowledgement != NULL && lib.acknowledgement_drop(one->acknowledgement) == TIELINE_BUSY) {
        leave("tieline_acknowledgement_drop", one->acknowledgement);
    }
    Py_XDECREF(one->object);
    free(one);
}

static int queue_clear(PyObject *self)
{
    Queue *queue = (Queue *)self;
    for (struct waiting *one; (one = pop(queue)) != NULL;) {
        drop_waiting(one);
    }
    Py_CLEAR(queue->worker);
    Py_CLEAR(queue->wake);
    Py_CLEAR(queue->type);
    Py_CLEAR(queue->engine);
    return 0;
}

static void queue_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)queue_clear(self);
    free_object(self);
}

static Py_ssize_t queue_len(PyObject *self)
{
    return __atomic_load_n(&((Queue *)self)->count, __ATOMIC_RELAXED);
}

/* Returns a new message object, without the record. */
static Arrived *new_arrived(PyObject *type, PyObject *worker)
{
    Arrived *arrived = type == NULL ? NULL : (Arrived *)PyType_GenericAlloc((PyTypeObject *)type, 0);
    if (arrived != NULL) {
        Py_XINCREF(worker);
        arrived->worker = worker;
    }
    return arrived;
}

/* Turns a message into its object. Returns NULL with an exception. */
static PyObject *object_of(const Queue *queue, struct waiting *one)
{
    PyObject *object = one->object;
    if (object == NULL) {
        size_t len = one->record.is_announced == 0 ? one->record.len : 0;
        Arrived *arrived = new_arrived(queue->type, queue->worker);
        object = (PyObject *)arrived;
        if (arrived != NULL) {
            arrived->payload = PyBytes_FromStringAndSize(one->payload, (Py_ssize_t)len);
            arrived->header_bytes = PyBytes_FromStringAndSize(one->header_bytes, (Py_ssize_t)one->header_len);
            if (arrived->payload == NULL || arrived->header_bytes == NULL) {
                Py_DECREF(object);
                object = NULL;
            }
        }
        if (object == NULL) {
            drop_waiting(one);
            return NULL;
        }
        arrived->record = one->record;
        arrived->announcement = one->announcement;
        arrived->acknowledgement = one->acknowledgement;
        arrived->peer = one->peer;
        arrived->state = KEPT;
    }
    free(one);
    return object;
}

/* Copies what a record holds. Returns NULL if there is no memory. */
static struct waiting *kept_without_lock(const Queue *queue, const struct tieline_message *message)
{
    size_t len = message->is_announced == 0 ? message->len : 0;
    struct waiting *one = malloc(sizeof *one + len);
    if (one == NULL) {
        return NULL;
    }
    one->object = NULL;
    one->record = *message;
    one->announcement = one->acknowledgement = NULL;
    one->header_len = 0;
    one->peer = 0;
    (void)lib.message_peer(message, &one->peer);
    (void)lib.message_header_bytes(message, one->header_bytes, &one->header_len);
    if (message->is_announced != 0) {
        (void)lib.message_announcement(message, &one->announcement);
    }
    if (queue->later) {
        (void)lib.message_acknowledgement(message, &one->acknowledgement);
    }
    if (len > 0) {
        memcpy(one->payload, message->payload, len);
    }
    return one;
}

/* Makes the object of a message in its handler. The caller has Python's lock. Returns NULL with an exception. */
static struct waiting *kept_as_object(const Queue *queue, const struct tieline_message *message)
{
    Arrived *arrived = new_arrived(queue->type, queue->worker);
    if (arrived == NULL) {
        return NULL;
    }
    arrived->record = *message;
    arrived->state = RUNNING;
    PyObject *kept = arrived_keep((PyObject *)arrived, queue->later ? Py_True : Py_False);
    struct waiting *one = kept == NULL ? NULL : calloc(1, sizeof *one);
    if (one == NULL) {
        if (kept != NULL) {
            (void)PyErr_NoMemory();
        }
        arrived->state = ENDED;
        Py_XDECREF(kept);
        Py_DECREF((PyObject *)arrived);
        return NULL;
    }
    Py_DECREF(kept);
    one->object = (PyObject *)arrived;
    return one;
}

static void on_queued(void *user, const struct tieline_message *message)
{
    Queue *queue = (Queue *)user;
    Engine *engine = (Engine *)queue->engine;
    int is_long = message->is_announced == 0 && message->len > SMALL;
    struct waiting *one = is_long ? NULL : kept_without_lock(queue, message);
    if (one != NULL) {
        push(queue, one);
    }
    if (one == NULL || is_watched(queue)) {
        PyGILState_STATE state = PyGILState_Ensure();
        if (one == NULL) {
            one = is_long ? kept_as_object(queue, message) : (PyErr_NoMemory(), NULL);
            if (one != NULL) {
                push(queue, one);
            } else if (engine != NULL) {
                store_exception(engine);
            }
        }
        PyObject *result = queue->wake == NULL || !is_watched(queue) ? Py_None : PyObject_CallObject(queue->wake, NULL);
        if (result == NULL && engine != NULL) {
            store_exception(engine);
        }
        if (result != Py_None) {
            Py_XDECREF(result);
        }
        PyGILState_Release(state);
    }
    if (engine != NULL) {
        (void)__atomic_fetch_add(&engine->handled, 1, __ATOMIC_RELEASE);
    }
}

/* pop(): returns the first message, or None. */
static PyObject *queue_pop(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct waiting *one = pop((Queue *)self);
    if (one == NULL) {
        Py_RETURN_NONE;
    }
    return object_of((Queue *)self, one);
}

/* get(timeout_ns): returns the first message. Without one, it returns None if the queue has ended; otherwise it waits until a handler has
   run, and then returns the first message, or the status of the wait. */
static PyObject *queue_get(PyObject *self, PyObject *timeout)
{
    Queue *queue = (Queue *)self;
    Engine *engine = (Engine *)queue->engine;
    int32_t status = TIELINE_CLOSED;
    struct waiting *one = pop(queue);
    if (one != NULL) {
        return object_of(queue, one);
    }
    if (queue->ended) {
        Py_RETURN_NONE;
    }
    int64_t limit = PyLong_AsLongLong(timeout);
    if (limit == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (engine == NULL || engine->handle == NULL || is_ending(engine)) {
        return PyLong_FromLong(status);
    }
    struct wait wait = {engine, NULL, handled_by(engine), now_ns(), 0};
    engine->calls++;
    Py_BEGIN_ALLOW_THREADS
    status = lib.wait_until(engine->handle, is_over, &wait, limit);
    Py_END_ALLOW_THREADS
    engine->calls--;
    if (status == TIELINE_OK && PyList_Size(engine->raised) == 0) {
        one = pop(queue);
    }
    return one == NULL ? PyLong_FromLong(status) : object_of(queue, one);
}

static PyObject *queue_get_watched(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((Queue *)self)->watched);
}

static int queue_set_watched(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    __atomic_store_n(&((Queue *)self)->watched, value == Py_True, __ATOMIC_RELAXED);
    return 0;
}

static PyObject *queue_end(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((Queue *)self)->ended = 1;
    Py_RETURN_NONE;
}

static PyMethodDef queue_methods[] = {
    {"pop", queue_pop, METH_NOARGS, NULL},
    {"get", queue_get, METH_O, NULL},
    {"end", queue_end, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef queue_fields[] = {
    {"watched", queue_get_watched, queue_set_watched, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_init, queue_init},       {Py_tp_traverse, queue_traverse}, {Py_tp_clear, queue_clear}, {Py_tp_dealloc, queue_dealloc},
    {Py_tp_methods, queue_methods}, {Py_tp_getset, queue_fields},     {Py_mp_length, queue_len},  {0, NULL},
};

static PyType_Spec queue_spec = {"tieline._native.Queue", sizeof(Queue), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, queue_slots};

/* ---- Handlers ---- */

/* A handler of the application, registered with the library; `type` is the class of its messages. */
typedef struct {
    PyObject_HEAD
    PyObject *handler, *engine, *worker, *type;
} Binding;

static int binding_init(PyObject *self, PyObject *args, PyObject *words)
{
    Binding *binding = (Binding *)self;
    PyObject *handler, *engine, *worker, *type;
    (void)words;
    if (!PyArg_ParseTuple(args, "OOOO", &handler, &engine, &worker, &type)) {
        return -1;
    }
    Py_INCREF(handler);
    Py_INCREF(engine);
    Py_INCREF(worker);
    Py_INCREF(type);
    binding->handler = handler;
    binding->engine = engine;
    binding->worker = worker;
    binding->type = type;
    return 0;
}

static int binding_traverse(PyObject *self, visitproc visit, void *arg)
{
    Binding *binding = (Binding *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(binding->handler);
    Py_VISIT(binding->engine);
    Py_VISIT(binding->worker);
    Py_VISIT(binding->type);
    return 0;
}

static int binding_clear(PyObject *self)
{
    Binding *binding = (Binding *)self;
    Py_CLEAR(binding->handler);
    Py_CLEAR(binding->engine);
    Py_CLEAR(binding->worker);
    Py_CLEAR(binding->type);
    return 0;
}

static void binding_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)binding_clear(self);
    free_object(self);
}

/* Runs the handler. `args` is a new reference, or null with an exception. */
static void call_handler(Binding *binding, PyObject *args)
{
    Engine *engine = (Engine *)binding->engine;
    if (engine == NULL) {
        Py_XDECREF(args);
        PyErr_Clear();
        return;
    }
    Py_INCREF(engine);
    PyObject *handler = binding->handler;
    Py_INCREF(handler);
    engine->runner = PyThread_get_thread_ident();
    engine->inside++;
    PyObject *result = args == NULL ? NULL : PyObject_CallObject(handler, args);
    engine->inside--;
    if (result == NULL) {
        store_exception(engine);
    }
    (void)__atomic_fetch_add(&engine->handled, 1, __ATOMIC_RELEASE);
    Py_XDECREF(result);
    Py_XDECREF(args);
    Py_DECREF(handler);
    Py_DECREF(engine);
}

static void on_message(void *user, const struct tieline_message *message)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Binding *binding = (Binding *)user;
    Arrived *arrived = binding->type == NULL ? NULL : (Arrived *)PyType_GenericAlloc((PyTypeObject *)binding->type, 0);
    if (arrived != NULL) {
        arrived->record = *message;
        arrived->state = RUNNING;
        Py_INCREF(binding->worker);
        arrived->worker = binding->worker;
        call_handler(binding, PyTuple_Pack(1, (PyObject *)arrived));
        if (arrived->state == RUNNING) {
            arrived->state = ENDED;
        }
        Py_DECREF((PyObject *)arrived);
    } else if (PyErr_Occurred()) {
        store_exception((Engine *)binding->engine);
    }
    PyGILState_Release(state);
}

static void on_notification(void *user, uint32_t peer, uint32_t word)
{
    PyGILState_STATE state = PyGILState_Ensure();
    call_handler((Binding *)user, Py_BuildValue("(II)", (unsigned)peer, (unsigned)word));
    PyGILState_Release(state);
}

static void on_peer_failure(void *user, uint32_t peer, const struct tieline_error *why)
{
    PyGILState_STATE state = PyGILState_Ensure();
    call_handler((Binding *)user, Py_BuildValue("(IN)", (unsigned)peer, fields_of(why)));
    PyGILState_Release(state);
}

static void on_peer_left(void *user, uint32_t peer)
{
    PyGILState_STATE state = PyGILState_Ensure();
    call_handler((Binding *)user, Py_BuildValue("(I)", (unsigned)peer));
    PyGILState_Release(state);
}

static void on_endpoint_failure(void *user, struct tieline_endpoint *endpoint, const struct tieline_error *why)
{
    PyGILState_STATE state = PyGILState_Ensure();
    call_handler((Binding *)user, Py_BuildValue("(KN)", (unsigned long long)(uintptr_t)endpoint, fields_of(why)));
    PyGILState_Release(state);
}

static PyType_Slot binding_slots[] = {
    {Py_tp_init, binding_init},   {Py_tp_traverse, binding_traverse}, {Py_tp_clear, binding_clear},
    {Py_tp_dealloc, binding_dealloc}, {0, NULL},
};

static PyType_Spec binding_spec = {"tieline._native.Binding", sizeof(Binding), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   binding_slots};

/* ---- Local buffers and posts ---- */

/* The memory of a Python object, registered as the local side of one operation. */
typedef struct {
    PyObject_HEAD
    struct exported view;
    void *region;
    int is_exported;
} Lent;

/* Ends the registration; returns whether the library has finished with the memory. */
static int lent_end(Lent *lent)
{
    if (lent->region != NULL && lib.close_region(lent->region) < 0) {
        return 0;
    }
    lent->region = NULL;
    if (lent->is_exported) {
        lent->is_exported = 0;
        lib.release_buffer(&lent->view);
    }
    return 1;
}

static PyObject *lent_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(lent_end((Lent *)self));
}

/* If the library may still access the memory, the memory stays for the rest of the process. */
static void lent_dealloc(PyObject *self)
{
    (void)lent_end((Lent *)self);
    free_object(self);
}

static PyMethodDef lent_methods[] = {
    {"close", lent_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lent_slots[] = {{Py_tp_dealloc, lent_dealloc}, {Py_tp_methods, lent_methods}, {0, NULL}};
static PyType_Spec lent_spec = {"tieline._native.Lent", sizeof(Lent), 0, Py_TPFLAGS_DEFAULT, lent_slots};
static PyTypeObject *lent_type;

/* Returns the handle of an argument: a number, or None for an object that was closed. */
static void *handle_of(PyObject *number)
{
    return number == Py_None ? NULL : PyLong_AsVoidPtr(number);
}

/* Returns an argument of at most `bits` bits. */
static uint64_t word_of(PyObject *number, int bits)
{
    uint64_t word = PyLong_AsUnsignedLongLong(number);
    int is_large = bits < 64 && word >> bits != 0;
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        is_large = 1;
    }
    if (is_large && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "%S does not fit in %d bits", number, bits);
    }
    return word;
}

/* The result of a post: the request number of a pending operation, 0 if it is done, or a status below 0. */
static PyObject *posted(int32_t status, uint64_t number)
{
    return status < 0 ? PyLong_FromLong(status) : PyLong_FromUnsignedLongLong(status == TIELINE_PENDING ? number : 0);
}

/* send(endpoint, id, header, payload[, header_bytes, flags]) */
static PyObject *native_send(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct exported payload, bytes;
    struct tieline_send_options options = {.size = sizeof options};
    char *start = NULL;
    Py_ssize_t len = 0;
    uint64_t number = 0;
    int32_t status;
    (void)module;
    if (count != 4 && count != 6) {
        PyErr_SetString(PyExc_TypeError, "send(endpoint, id, header, payload[, header_bytes, flags])");
        return NULL;
    }
    void *endpoint = handle_of(args[0]);
    uint16_t id = (uint16_t)word_of(args[1], 16);
    if (PyErr_Occurred()) {
        return NULL;
    }
    uint64_t header = word_of(args[2], 64);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int is_bytes = PyBytes_Check(args[3]);
    if (is_bytes) {
        (void)PyBytes_AsStringAndSize(args[3], &start, &len);
    } else {
        if (export_bytes(args[3], &payload, 0) < 0) {
            return NULL;
        }
        start = payload.buf;
        len = payload.len;
    }
    if (count == 6) {
        options.flags = (uint32_t)word_of(args[5], 32);
        if (PyErr_Occurred() || export_bytes(args[4], &bytes, 0) < 0) {
            if (!is_bytes) {
                lib.release_buffer(&payload);
            }
            return NULL;
        }
        options.header_bytes = bytes.buf;
        options.header_len = (size_t)bytes.len;
        Py_BEGIN_ALLOW_THREADS
        status = lib.send_with(endpoint, id, header, start, (size_t)len, &options, NULL, &number);
        Py_END_ALLOW_THREADS
        lib.release_buffer(&bytes);
    } else if (len < LONG) {
        status = lib.send(endpoint, id, header, start, (size_t)len, NULL, &number);
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = lib.send(endpoint, id, header, start, (size_t)len, NULL, &number);
        Py_END_ALLOW_THREADS
    }
    if (!is_bytes) {
        lib.release_buffer(&payload);
    }
    return posted(status, number);
}

/* transfer(writes, key, offset, context, buffer): a put or a get of a contiguous buffer. Returns what `posted` returns, or a pair of
   that and a Lent that the operation still uses. */
static PyObject *native_transfer(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct exported view;
    uint64_t number = 0;
    int32_t status;
    (void)module;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "transfer(writes, key, offset, context, buffer)");
        return NULL;
    }
    int writes = args[0] == Py_True;
    void *key = handle_of(args[1]);
    uint64_t offset = word_of(args[2], 64);
    void *context = PyErr_Occurred() ? NULL : handle_of(args[3]);
    if (PyErr_Occurred() || export_bytes(args[4], &view, !writes) < 0) {
        return NULL;
    }
    if (writes && view.len <= COPIED) {
        status = lib.put_bytes(key, offset, view.buf, (size_t)view.len, NULL, &number);
        lib.release_buffer(&view);
        return posted(status, number);
    }
    Lent *lent = (Lent *)PyType_GenericAlloc(lent_type, 0);
    if (lent == NULL) {
        lib.release_buffer(&view);
        return NULL;
    }
    lent->view = view;
    lent->is_exported = 1;
    status = lib.lend(context, view.buf, (size_t)view.len, &lent->region);
    if (status >= 0) {
        Py_BEGIN_ALLOW_THREADS
        status = (writes ? lib.put : lib.get)(key, offset, lent->region, 0, (size_t)view.len, NULL, &number);
        Py_END_ALLOW_THREADS
    }
    int is_unused = status != TIELINE_PENDING && lent_end(lent);
    if (is_unused || status < 0) {
        Py_DECREF((PyObject *)lent);
        return posted(status, number);
    }
    return Py_BuildValue("(NN)", posted(status, number), (PyObject *)lent);
}

/* ---- The module ---- */

/* bind(addresses, left): receives the addresses of functions, and the list of handles that remain to be dropped. */
static PyObject *native_bind(PyObject *module, PyObject *args)
{
    PyObject *addresses, *list;
    void **place = (void **)&lib;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &addresses, &list)) {
        return NULL;
    }
    if (PyTuple_Size(addresses) != (Py_ssize_t)(sizeof lib / sizeof *place)) {
        PyErr_Format(PyExc_ImportError, "tieline._native is of another version: it needs %zu functions", sizeof lib / sizeof *place);
        return NULL;
    }
    for (Py_ssize_t at = 0; at < PyTuple_Size(addresses); at++) {
        place[at] = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, at));
    }
    Py_INCREF(list);
    Py_XDECREF(left);
    left = list;
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Returns the address of an object, which handlers get as their `user`. */
static PyObject *native_address(PyObject *module, PyObject *object)
{
    (void)module;
    return PyLong_FromVoidPtr(object);
}

static PyMethodDef functions[] = {
    {"bind", native_bind, METH_VARARGS, NULL},
    {"address", native_address, METH_O, NULL},
    {"send", FAST(native_send), NULL},
    {"transfer", FAST(native_transfer), NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tieline._native", NULL, -1, functions, NULL, NULL, NULL, NULL};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **kept)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL || PyModule_AddObject(module, name, type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    if (kept != NULL) {
        Py_INCREF(type);
        *kept = (PyTypeObject *)type;
    }
    return 0;
}

static int add_address(PyObject *module, const char *name, void (*function)(void))
{
    PyObject *number = PyLong_FromUnsignedLongLong((unsigned long long)(uintptr_t)function);
    if (number == NULL || PyModule_AddObject(module, name, number) < 0) {
        Py_XDECREF(number);
        return -1;
    }
    return 0;
}

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    if (add_type(module, "Engine", &engine_spec, NULL) < 0 || add_type(module, "Arrived", &arrived_spec, NULL) < 0 ||
        add_type(module, "Queue", &queue_spec, NULL) < 0 || add_type(module, "Binding", &binding_spec, NULL) < 0 || add_type(module, "Lent", &lent_spec, &lent_type) < 0 ||
        add_address(module, "ON_MESSAGE", (void (*)(void))on_message) < 0 ||
        add_address(module, "ON_QUEUED", (void (*)(void))on_queued) < 0 ||
        add_address(module, "ON_NOTIFICATION", (void (*)(void))on_notification) < 0 ||
        add_address(module, "ON_PEER_FAILURE", (void (*)(void))on_peer_failure) < 0 ||
        add_address(module, "ON_PEER_LEFT", (void (*)(void))on_peer_left) < 0 ||
        add_address(module, "ON_ENDPOINT_FAILURE", (void (*)(void))on_endpoint_failure) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
