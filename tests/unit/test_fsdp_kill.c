/* Sharded training in an elastic job of real processes: SIGKILL at any place, newcomers. The pieces
   of all ranks at the end are those of a run without deaths, bit for bit. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "own.h"

#include "cdp_elastic.h"
#include "cdp_fsdp.h"
#include "elastic_procs.h"

enum {
    RANKS = 3,
    UNITS = 3,
    COUNT = 700, /* elements of a unit, in rows of 7 */
    SAMPLES = 12
};

static struct seat { /* of each process, which all share; of the last one: where all end */
    uint64_t turn, rebinds;
    uint32_t wrong, done;
    cdp_status status;
    char text[512];
} * seats;

static void fill(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    (void)user;
    for (uint64_t k = 0; k < count; ++k)
        out[k] = (float)((param + first + k) % 7) - 3;
}
/* A whole number: sums are exact in every order, on any number of ranks. */
static float gradient(uint32_t sample, uint64_t turn, uint32_t param, uint64_t k) {
    return (float)((sample * 5 + turn * 3 + param + k) % 7) - 3;
}

static cdp_optim optimizer(void) {
    cdp_optim o;
    memset(&o, 0, sizeof o);
    o.kind = CDP_OPTIM_ADAMW;
    o.lr = .125;
    return o;
}

/* One process, without shards. */
static void serial(uint32_t param, float *value, float *first, float *second) {
    cdp_optim o = optimizer();
    float grad[COUNT];
    const cdp_optim_range r = {
        .param = value, .state = {first, second}, .grad = grad, .count = COUNT};
    fill(NULL, param, 0, COUNT, value);
    memset(first, 0, COUNT * sizeof *first);
    memset(second, 0, COUNT * sizeof *second);
    for (uint64_t turn = 0; turn < seats[MOST].turn; ++turn) {
        ++o.step;
        for (uint64_t k = 0; k < COUNT; ++k) {
            grad[k] = 0;
            for (uint32_t s = 0; s < SAMPLES; ++s)
                grad[k] += gradient(s, turn, param, k);
            grad[k] /= 8;
        }
        if (cdp_optim_update(&o, &r) != CDP_OK) abort();
    }
}

static uint32_t differences(cdp_fsdp *f) {
    float value[COUNT], first[COUNT], second[COUNT];
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < cdp_fsdp_piece_count(f); ++i) {
        const cdp_fsdp_piece p = cdp_fsdp_piece_at(f, i);
        const size_t bytes = (size_t)p.count * sizeof(float);
        serial(p.param, value, first, second);
        wrong += memcmp(p.data, value + p.first, bytes) != 0;
        wrong += memcmp(p.state[0], first + p.first, bytes) != 0;
        wrong += memcmp(p.state[1], second + p.first, bytes) != 0;
    }
    return wrong;
}

static cdp_status backward(cdp_fsdp *f, const cdp_elastic_now *now) {
    cdp_status st = CDP_OK;
    for (uint32_t u = UNITS; u-- > 0 && st == CDP_OK;) {
        float *grad;
        st = cdp_fsdp_need(f, u);
        grad = st == CDP_OK ? cdp_fsdp_grad(f, u) : NULL;
        if (!grad) return cdp_last_error()->status;
        for (uint32_t s = now->rank; s < SAMPLES; s += now->size)
            for (uint64_t k = 0; k < COUNT; ++k)
                grad[k] += gradient(s, now->step, u, k);
        st = cdp_fsdp_ready(f, u);
    }
    return st == CDP_OK ? cdp_fsdp_backward_end(f, 0, NULL) : st;
}

/* The group has changed: shards move, or are made. Errors of the group show in the next change. */
static cdp_status change(cdp_fsdp_desc *d, const cdp_elastic_now *now, cdp_fsdp **f) {
    if (*f && now->step) return cdp_fsdp_rebind(*f, now->group, now->step);
    cdp_fsdp_destroy(*f); /* nothing is committed: all begin anew */
    d->group = now->group;
    d->receive = now->step > 0;
    return cdp_fsdp_create(d, f);
}

static cdp_status run(struct seat *seat, cdp_elastic *e) {
    cdp_optim optim = optimizer();
    cdp_fsdp_param params[UNITS];
    const cdp_fsdp_desc some = {.params = params,
        .param_count = UNITS,
        .optim = &optim,
        .fill = fill,
        .divisor = 8,
        .copies = 1};
    cdp_fsdp_desc d = some;
    cdp_fsdp *f = NULL;
    cdp_elastic_now now;
    cdp_status st = CDP_OK;
    bool bound = false;
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < UNITS; ++i) {
        params[i].unit = i;
        params[i].ndim = 2;
        params[i].shape[0] = COUNT / 7;
        params[i].shape[1] = 7;
    }
    for (;;) {
        st = cdp_elastic_next(e, &now);
        if (st != CDP_OK) break;
        if (now.changed) {
            if (!now.step) optim.step = 0;
            bound = change(&d, &now, &f) == CDP_OK;
            if (!bound && cdp_last_error()->status == CDP_ERR_STATE) { /* a shard is gone */
                st = CDP_ERR_STATE;
                break;
            }
            seat->rebinds += bound && now.step;
        }
        if (!bound) { /* the groups of a cdp_fsdp are its own: their failures are told */
            (void)!cdp_elastic_alarm(e, cdp_last_error()->text);
            continue;
        }
        if (cdp_fsdp_turn(f) != now.step) ++seat->wrong;
        if (now.step == seats[MOST].turn) {
            st = cdp_elastic_finish(e);
            break;
        }
        test_sleep_ms(2);
        if (backward(f, &now) != CDP_OK) {
            (void)!cdp_elastic_alarm(e, cdp_last_error()->text);
            continue;
        }
        if (cdp_elastic_commit(e) != CDP_OK) continue;
        bound = cdp_fsdp_step(f) == CDP_OK;
        seat->turn = now.step + 1;
    }
    if (st == CDP_OK) seat->wrong += differences(f);
    cdp_fsdp_destroy(f);
    return st;
}

static void seat_main(uint32_t i) {
    job_member *m = &job.m[i];
    struct seat *seat = &seats[i];
    cdp_elastic *e;
    m->desc.tcp = &m->tcp;
    m->desc.join_ms = m->tcp.group.timeout_ms = 20000;
    m->desc.grow_ms = 20;
    seat->status = cdp_elastic_create_from_env(&m->desc, &e);
    if (seat->status == CDP_OK) seat->status = run(seat, e);
    snprintf(seat->text, sizeof seat->text, "%s", cdp_last_error()->text);
    seat->done = 1;
    cdp_elastic_destroy(e);
}

static uint32_t sit_down(void) {
    const uint32_t i = job.count++;
    job.pid[i] = fork_one();
    if (job.pid[i]) return i;
    seat_main(i);
    _exit(0);
}

/* Waits until seat i has ended `turns` steps. */
static bool comes_to(uint32_t i, uint64_t turns) {
    const uint64_t until = test_until_ns(20000);
    while (
        ((volatile struct seat *)seats)[i].turn < turns && !seats[i].done && test_now_ns() < until)
        test_sleep_ms(1);
    return test_check(seats[i].turn >= turns, __FILE__, __LINE__, "seat %u is at step %u: %s", i,
        (unsigned)seats[i].turn, seats[i].text);
}

TEST(processes_are_killed_and_join_and_nothing_is_lost) {
    uint64_t random = test_now_ns();
    uint32_t seat[RANKS];
    seats = (struct seat *)mmap(NULL, (MOST + 1) * sizeof *seats, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seats == MAP_FAILED) abort();
    seats[MOST].turn = UINT64_MAX;
    job_begin();
    for (uint32_t i = 0; i < RANKS; ++i)
        seat[i] = sit_down();
    for (uint32_t death = 0; death < 3; ++death) {
        const uint32_t victim = death % RANKS, other = (death + 1) % RANKS;
        if (!comes_to(seat[victim], 3)) break;
        usleep((useconds_t)(test_random(&random) % 4000)); /* anywhere in a step */
        kill_one(seat[victim]);
        if (!comes_to(seat[other], seats[seat[other]].turn + 2)) break;
        seat[victim] = sit_down();
        if (!comes_to(seat[victim], 1)) break;
    }
    seats[MOST].turn = ((volatile struct seat *)seats)[seat[0]].turn + 60; /* well ahead */
    for (uint32_t i = 0; i < RANKS; ++i) {
        end_of(seat[i]);
        test_check(seats[seat[i]].status == CDP_OK && !seats[seat[i]].wrong && seats[seat[i]].done,
            __FILE__, __LINE__, "seat %u: %s, %u wrong: %s", seat[i],
            cdp_status_name(seats[seat[i]].status), seats[seat[i]].wrong, seats[seat[i]].text);
    }
    T(seats[seat[0]].rebinds + seats[seat[1]].rebinds + seats[seat[2]].rebinds > 0);
    job_end();
    munmap(seats, (MOST + 1) * sizeof *seats);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"processes_are_killed_and_join_and_nothing_is_lost",
            processes_are_killed_and_join_and_nothing_is_lost, 120},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
