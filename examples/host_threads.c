/* Runs a model that was compiled for two threads, on threads of this program: main INPUT OUTPUT.
 *
 *     fast = sparsejit.compile(model, (x,), threads=2, free_batch=False)
 *     fast.export("model.o", header="model.h")
 *     cc host_threads.c model.o -pthread -o main
 */
#include <pthread.h>
#include <stdio.h>
#include "model.h"

/* A thread that waits for work. A program that must not sleep between layers would spin. */
typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*function)(void *); /* null while there is no work */
    void *argument;
    int is_ending;
} worker;

static void *serve(void *given)
{
    worker *own = given;
    pthread_mutex_lock(&own->lock);
    while (!own->is_ending) {
        if (!own->function) {
            pthread_cond_wait(&own->changed, &own->lock);
            continue;
        }
        pthread_mutex_unlock(&own->lock);
        own->function(own->argument);
        pthread_mutex_lock(&own->lock);
        own->function = NULL;
        pthread_cond_broadcast(&own->changed);
    }
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

static void start(void *self, int thread, void (*function)(void *), void *argument)
{
    worker *other = (worker *)self + (thread - 1);
    pthread_mutex_lock(&other->lock);
    other->function = function;
    other->argument = argument;
    pthread_cond_broadcast(&other->changed);
    pthread_mutex_unlock(&other->lock);
}

static void wait_for(void *self, int thread)
{
    worker *other = (worker *)self + (thread - 1);
    pthread_mutex_lock(&other->lock);
    while (other->function)
        pthread_cond_wait(&other->changed, &other->lock);
    pthread_mutex_unlock(&other->lock);
}

static float x[MODEL_INPUT_0_SIZE], y[MODEL_OUTPUT_0_SIZE];
static char workspace[MODEL_WORKSPACE_BYTES]
    __attribute__((aligned(MODEL_WORKSPACE_ALIGNMENT)));

int main(int count, char **names)
{
    static worker workers[1]; /* one thread besides this one */
    const model_threads threads = {workers, start, wait_for};
    const float *inputs[] = {x};
    float *outputs[] = {y};
    FILE *file = count == 3 ? fopen(names[1], "rb") : NULL;
    int status;

    if (!file || fread(x, sizeof x, 1, file) != 1)
        return 2;
    fclose(file);
    pthread_mutex_init(&workers[0].lock, NULL);
    pthread_cond_init(&workers[0].changed, NULL);
    if (pthread_create(&workers[0].thread, NULL, serve, &workers[0]))
        return 3;

    status = model_run(inputs, outputs, workspace, &threads);

    pthread_mutex_lock(&workers[0].lock);
    workers[0].is_ending = 1;
    pthread_cond_broadcast(&workers[0].changed);
    pthread_mutex_unlock(&workers[0].lock);
    pthread_join(workers[0].thread, NULL);
    file = fopen(names[2], "wb");
    if (!file || fwrite(y, sizeof y, 1, file) != 1 || fclose(file))
        return 4;
    return status;
}
