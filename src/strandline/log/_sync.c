/* A thread that syncs files and never takes the interpreter's lock: the twin of real_sync.SyncThread for small groups.
 *
 * The event loop gives it one group at a time (`begin`) and is told of the end by a descriptor that becomes readable
 * (`fileno`), or in `begin` itself where it waits a moment for it. A call that never returns keeps this thread, and
 * nothing else.
 */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FILES_MAX 8

typedef int (*SyncCall)(int fd);

static int
call_fdatasync(int fd)
{
    return fdatasync(fd) == 0 ? 0 : errno;
}

/* Returns 0 or an errno. Tests put another in its place, to fail or to hang. */
static SyncCall sync_call = call_fdatasync;

enum State { IDLE, UNDER_WAY, ENDED };

/* What the two threads share. It outlives the object where that goes while a call hangs: whoever is last frees it. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t given;  /* for the thread: a group, or the end of its work */
    pthread_cond_t ended;  /* for a loop that waits in begin */
    enum State state;
    int closing;
    int waited_for;  /* the loop is in begin: it needs no descriptor */
    int holders;
    int descriptor;
    int count;
    int synced;
    int error;
    int files[FILES_MAX];
} Shared;

typedef struct {
    PyObject_HEAD
    Shared *shared;
    pthread_t thread;
    int running;
} SyncThread;

static void
release(Shared *shared)
{
    pthread_mutex_lock(&shared->lock);
    int holders = --shared->holders;
    pthread_mutex_unlock(&shared->lock);
    if (holders == 0) {
        close(shared->descriptor);
        pthread_mutex_destroy(&shared->lock);
        pthread_cond_destroy(&shared->given);
        pthread_cond_destroy(&shared->ended);
        free(shared);
    }
}

/* Have the disk begin to write all of them: fdatasync then waits for one after the other, and they are written at once.
 * What fails here is left dirty, or is told to the fdatasync of its file: this call waits for nothing, so it takes no
 * error away. A file system that does not know it returns an error, and is none the worse. */
static void
begin_writing(const int *files, int count)
{
#ifdef SYNC_FILE_RANGE_WRITE
    for (int each = 0; each < count; each++) {
        (void)sync_file_range(files[each], 0, 0, SYNC_FILE_RANGE_WRITE);
    }
#endif
}

/* In the thread. With the lock: from one group to the next. */
static void
sync_one_group(Shared *shared)
{
    int synced = 0, error = 0, count = shared->count;
    pthread_mutex_unlock(&shared->lock);
    if (count > 1) {
        begin_writing(shared->files + 1, count - 1);  /* the first one is synced right away */
    }
    while (synced < count && (error = sync_call(shared->files[synced])) == 0) {
        synced++;
    }
    pthread_mutex_lock(&shared->lock);
    shared->synced = synced;
    shared->error = error;
    shared->state = ENDED;
    if (shared->waited_for) {
        pthread_cond_signal(&shared->ended);
    }
    else {
        uint64_t one = 1;
        ssize_t written = write(shared->descriptor, &one, sizeof one);
        (void)written;  /* the counter of an eventfd that is drained each time has room for one more */
    }
}

static void *
work(void *argument)
{
    Shared *shared = argument;
    pthread_mutex_lock(&shared->lock);
    for (;;) {
        while (shared->state != UNDER_WAY && !shared->closing) {
            pthread_cond_wait(&shared->given, &shared->lock);
        }
        if (shared->state != UNDER_WAY) {
            break;
        }
        sync_one_group(shared);
    }
    pthread_mutex_unlock(&shared->lock);
    release(shared);
    return NULL;
}

static PyObject *
fail_with(int number)
{
    errno = number;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *
new_thread(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, ":SyncThread", names)) {
        return NULL;
    }
    SyncThread *self = (SyncThread *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    shared->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (shared->descriptor < 0) {
        int number = errno;
        free(shared);
        Py_DECREF(self);
        return fail_with(number);
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&shared->lock, NULL);
    pthread_cond_init(&shared->given, NULL);
    pthread_cond_init(&shared->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    shared->holders = 1;
    self->shared = shared;
    return (PyObject *)self;
}

/* The thread takes no signal: those are the main thread's. Returns an errno. */
static int
start(SyncThread *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    self->shared->holders++;
    int number = pthread_create(&self->thread, NULL, work, self->shared);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number != 0) {
        self->shared->holders--;
        return number;
    }
    self->running = 1;
#ifdef __linux__
    pthread_setname_np(self->thread, "strandline-sync");
#endif
    return 0;
}

/* With the lock, without the interpreter's: until the group has ended or so many microseconds are over. */
static void
wait_for_end(Shared *shared, long wait_us)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += wait_us % 1000000 * 1000;
    until.tv_sec += wait_us / 1000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    shared->waited_for = 1;
    while (shared->state == UNDER_WAY &&
           pthread_cond_timedwait(&shared->ended, &shared->lock, &until) != ETIMEDOUT) {
    }
    shared->waited_for = 0;
}

static PyObject *
begin(SyncThread *self, PyObject *arguments)
{
    PyObject *given;
    long wait_us;
    int files[FILES_MAX];
    if (!PyArg_ParseTuple(arguments, "O!l:begin", &PyList_Type, &given, &wait_us)) {
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(given);
    if (count > FILES_MAX || wait_us < 0 || wait_us > 1000000) {
        return PyErr_Format(PyExc_ValueError, "%zd files and a wait of %ld us: at most %d and 1000000", count, wait_us,
                            FILES_MAX);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long number = PyLong_AsLong(PyList_GET_ITEM(given, i));
        if (number == -1 && PyErr_Occurred()) {
            return NULL;
        }
        files[i] = (int)number;
    }
    Shared *shared = self->shared;
    if (shared->closing) {
        PyErr_SetString(PyExc_RuntimeError, "the sync thread has been closed");
        return NULL;
    }
    if (!self->running) {
        int number = start(self);
        if (number != 0) {
            return fail_with(number);
        }
    }
    pthread_mutex_lock(&shared->lock);
    if (shared->state != IDLE) {
        pthread_mutex_unlock(&shared->lock);
        PyErr_SetString(PyExc_RuntimeError, "a group is under way, or its end has not been taken");
        return NULL;
    }
    memcpy(shared->files, files, sizeof files);
    shared->count = (int)count;
    shared->state = UNDER_WAY;
    pthread_cond_signal(&shared->given);
    if (wait_us > 0) {
        Py_BEGIN_ALLOW_THREADS
        wait_for_end(shared, wait_us);
        pthread_mutex_unlock(&shared->lock);
        Py_END_ALLOW_THREADS
    }
    else {
        pthread_mutex_unlock(&shared->lock);
    }
    Py_RETURN_NONE;
}

static PyObject *
end(SyncThread *self, PyObject *Py_UNUSED(ignored))
{
    Shared *shared = self->shared;
    pthread_mutex_lock(&shared->lock);
    int ended = shared->state == ENDED, synced = shared->synced, error = shared->error;
    if (ended) {
        uint64_t told;
        ssize_t size = read(shared->descriptor, &told, sizeof told);
        (void)size;  /* nothing there where the loop waited in begin */
        shared->state = IDLE;
    }
    pthread_mutex_unlock(&shared->lock);
    if (!ended) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(ii)", synced, error);
}

static PyObject *
join(SyncThread *self, PyObject *Py_UNUSED(ignored))
{
    Shared *shared = self->shared;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&shared->lock);
    shared->waited_for = 1;
    while (shared->state == UNDER_WAY) {
        pthread_cond_wait(&shared->ended, &shared->lock);
    }
    shared->waited_for = 0;
    pthread_mutex_unlock(&shared->lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *
get_fileno(SyncThread *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(self->shared->descriptor);
}

static void
tell_to_end(SyncThread *self)
{
    pthread_mutex_lock(&self->shared->lock);
    self->shared->closing = 1;
    pthread_cond_signal(&self->shared->given);
    pthread_mutex_unlock(&self->shared->lock);
}

static PyObject *
close_thread(SyncThread *self, PyObject *Py_UNUSED(ignored))
{
    tell_to_end(self);
    if (self->running) {
        self->running = 0;
        Py_BEGIN_ALLOW_THREADS
        pthread_join(self->thread, NULL);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static void
deallocate(SyncThread *self)
{
    if (self->shared != NULL) {
        tell_to_end(self);
        if (self->running) {
            pthread_detach(self->thread);
        }
        release(self->shared);
    }
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef thread_methods[] = {
    {"begin", (PyCFunction)begin, METH_VARARGS, "begin(files, wait_us): sync these descriptors, in their order."},
    {"end", (PyCFunction)end, METH_NOARGS, "end(): (how many were synced, errno or 0) of a group that has ended."},
    {"join", (PyCFunction)join, METH_NOARGS, "join(): wait until no group is under way."},
    {"fileno", (PyCFunction)get_fileno, METH_NOARGS, "fileno(): readable when a group has ended."},
    {"close", (PyCFunction)close_thread, METH_NOARGS, "close(): end the thread, after what it was given."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot thread_slots[] = {
    {Py_tp_new, new_thread},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, thread_methods},
    {0, NULL},
};

static PyType_Spec thread_spec = {
    .name = "strandline.log._sync.SyncThread",
    .basicsize = sizeof(SyncThread),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = thread_slots,
};

static PyObject *
call_instead(PyObject *Py_UNUSED(module), PyObject *address)
{
    void *call = PyLong_AsVoidPtr(address);
    if (call == NULL && PyErr_Occurred()) {
        return NULL;
    }
    sync_call = call == NULL ? call_fdatasync : (SyncCall)call;
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"call_instead", call_instead, METH_O, "call_instead(address): of fdatasync, in tests; 0 for fdatasync again."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "strandline.log._sync",
    .m_size = -1,
    .m_methods = module_methods,
};

PyMODINIT_FUNC
PyInit__sync(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&thread_spec);
    if (type == NULL || PyModule_AddObject(module, "SyncThread", type) < 0 ||
        PyModule_AddIntConstant(module, "FILES_MAX", FILES_MAX) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
