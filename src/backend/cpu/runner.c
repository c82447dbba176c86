/* Runs a compiled schedule on the pool. All steps of a run happen inside one wake-up: worker 0 runs the small
 * steps alone, one after the other; around a step that all share stands a barrier that spins briefly before
 * it sleeps. The steps of a loop follow each other again and again, like any steps. Invariant: every worker
 * walks the same steps in the same order and meets the same barriers. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/clock.h"

enum { SPINS = 2000, MESSAGE_BYTES = 1024 };

typedef struct barrier {
    int workers;
    _Atomic int arrived;
    _Atomic uint32_t generation;
    _Atomic int sleepers;
    _Atomic int64_t taken; /* pieces of work since the last barrier */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
} barrier;

struct trd__cpu_fault {
    pthread_mutex_t mutex;
    _Atomic int failed;
    const char *program; /* of the current run */
    char message[MESSAGE_BYTES];
};

struct trd__runner {
    trd__pool *pool;
    int workers;
    barrier barrier;
    trd__cpu_fault fault;
    const trd__run *run; /* the current one */
    trd__track *track;   /* of the current run, worker 0 only; NULL: it is not recorded */
    uint64_t lap_ns;     /* when the kernel call that is recorded next began */
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void barrier_sleep(barrier *b, uint32_t seen)
{
    pthread_mutex_lock(&b->mutex);
    atomic_fetch_add(&b->sleepers, 1);
    while (atomic_load(&b->generation) == seen) pthread_cond_wait(&b->wake, &b->mutex);
    atomic_fetch_sub(&b->sleepers, 1);
    pthread_mutex_unlock(&b->mutex);
}

static void barrier_wait(barrier *b)
{
    if (b->workers == 1) return;
    uint32_t seen = atomic_load(&b->generation);
    if (atomic_fetch_add(&b->arrived, 1) + 1 == b->workers) {
        atomic_store(&b->arrived, 0);
        atomic_store(&b->taken, 0);
        atomic_fetch_add(&b->generation, 1);
        if (atomic_load(&b->sleepers) == 0) return;
        pthread_mutex_lock(&b->mutex);
        pthread_cond_broadcast(&b->wake);
        pthread_mutex_unlock(&b->mutex);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&b->generation, memory_order_acquire) != seen) return;
        pause_briefly();
    }
    barrier_sleep(b, seen);
}

static void *address(const trd__run *run, const trd__place *place, int64_t row)
{
    if (place->region == TRD__REGION_NONE) return NULL;
    return run->regions[place->region] + place->offset + (size_t)row * place->stride;
}

/* turn: of the loop the step is in, 0 outside one. */
static void run_step(trd__runner *runner, const trd__cpu_step *step, int64_t turn, int worker, int workers)
{
    const trd__run *run = runner->run;
    const void *inputs[TRD__KERNEL_INPUTS];
    void *outputs[TRD__KERNEL_RESULTS];
    int64_t row = step->loop && step->loop->reverse ? step->loop->count - 1 - turn : turn;
    for (int i = 0; i < step->input_count; i++) inputs[i] = address(run, &step->inputs[i], row);
    for (int i = 0; i < step->output_count; i++) outputs[i] = address(run, &step->outputs[i], row);
    trd__cpu_call call = {.node = step->node,
                          .inputs = inputs,
                          .outputs = outputs,
                          .worker_scratch =
                              run->worker_scratch + (size_t)worker * run->executable->worker_scratch,
                          .shared_scratch = run->shared_scratch,
                          .state = step->state,
                          .worker = worker,
                          .workers = workers,
                          .row = step->loop ? &row : NULL,
                          .taken = &runner->barrier.taken,
                          .fault = &runner->fault};
    for (int phase = 0; phase < step->phases; phase++) {
        if (workers == 1)
            atomic_store_explicit(&runner->barrier.taken, 0, memory_order_relaxed);
        else if (phase > 0)
            barrier_wait(&runner->barrier);
        step->kernel->run(&call, phase);
    }
}

/* Worker 0's kernel calls follow each other without a gap: a call takes until the next one may begin, waiting
 * for the other workers included. */
static void end_lap(trd__runner *runner, const trd__cpu_step *step)
{
    uint64_t now = trd__now_ns();
    trd__track_add(runner->track, step->label, runner->lap_ns, now, (int64_t)runner->run->ticket);
    runner->lap_ns = now;
}

/* The number of the step after step s; *turn counts the turns of its loop. */
static int step_after(const trd__cpu_step *step, int s, int64_t *turn)
{
    const trd__cpu_loop *loop = step->loop;
    if (!loop || s < loop->last) return s + 1;
    if (++*turn < loop->count) return loop->first;
    *turn = 0;
    return s + 1;
}

static void work(void *context, int worker, int workers)
{
    trd__runner *runner = context;
    const trd__executable *executable = runner->run->executable;
    const trd__cpu_step *before = NULL;
    bool after_shared = false, recorded = worker == 0 && runner->track;
    int64_t turn = 0;
    for (int s = 0; s < executable->step_count;) {
        const trd__cpu_step *step = &executable->steps[s];
        bool shared = step->workers != 1;
        if (before && workers > 1 && (shared || after_shared)) barrier_wait(&runner->barrier);
        if (recorded && before) end_lap(runner, before);
        if (shared)
            run_step(runner, step, turn, worker, workers);
        else if (worker == 0)
            run_step(runner, step, turn, 0, 1);
        after_shared = shared;
        before = step;
        s = step_after(step, s, &turn);
    }
}

static bool any_shared(const trd__executable *executable)
{
    for (int s = 0; s < executable->step_count; s++)
        if (executable->steps[s].workers != 1) return true;
    return false;
}

void trd__runner_run(trd__runner *runner, const trd__run *run, trd__track *track)
{
    const trd__executable *executable = run->executable;
    runner->run = run;
    runner->track = track;
    atomic_store(&runner->barrier.taken, 0);
    if (track) runner->lap_ns = trd__now_ns();
    runner->fault.program = executable->name;
    if (runner->workers > 1 && any_shared(executable))
        trd__pool_run(runner->pool, work, runner);
    else
        work(runner, 0, 1);
    if (track && executable->step_count) end_lap(runner, &executable->steps[executable->step_count - 1]);
}

void trd__cpu_fail(const trd__cpu_call *call, const char *format, ...)
{
    trd__cpu_fault *fault = call->fault;
    pthread_mutex_lock(&fault->mutex);
    if (!atomic_load(&fault->failed)) {
        char iteration[48] = "";
        va_list arguments;
        va_start(arguments, format);
        if (call->row) snprintf(iteration, sizeof iteration, " in iteration %lld", (long long)*call->row);
        int used = snprintf(fault->message, sizeof fault->message,
                            "program \"%s\", op %s%s%s%s: ", fault->program, call->node->op->name,
                            call->node->name ? " " : "", call->node->name ? call->node->name : "", iteration);
        if (used > 0 && used < MESSAGE_BYTES)
            vsnprintf(fault->message + used, sizeof fault->message - (size_t)used, format, arguments);
        va_end(arguments);
        atomic_store(&fault->failed, 1);
    }
    pthread_mutex_unlock(&fault->mutex);
}

const char *trd__runner_fault(const trd__runner *runner)
{
    return atomic_load(&runner->fault.failed) ? runner->fault.message : NULL;
}

void trd__runner_reset(trd__runner *runner)
{
    atomic_store(&runner->fault.failed, 0);
}

trd_status trd__runner_create(int workers, trd__runner **out)
{
    *out = NULL;
    trd__runner *runner = trd__calloc(1, sizeof *runner);
    if (!runner) return TRD_NO_MEMORY;
    trd_status status = trd__pool_create(workers, &runner->pool);
    if (status) {
        trd__free(runner);
        return status;
    }
    runner->workers = runner->barrier.workers = workers;
    pthread_mutex_init(&runner->barrier.mutex, NULL);
    pthread_cond_init(&runner->barrier.wake, NULL);
    pthread_mutex_init(&runner->fault.mutex, NULL);
    *out = runner;
    return TRD_OK;
}

void trd__runner_free(trd__runner *runner)
{
    if (!runner) return;
    pthread_mutex_destroy(&runner->fault.mutex);
    pthread_cond_destroy(&runner->barrier.wake);
    pthread_mutex_destroy(&runner->barrier.mutex);
    trd__pool_free(runner->pool);
    trd__free(runner);
}
