/*  17_game_loop.cpp - a game adds up an array over the network without missing a frame

    You learn: to communicate without a thread of the library, in a budget of 1 ms per frame.

        g++ -O2 examples/17_game_loop.cpp -o game_loop -pthread
        ./cdprun -n 4 ./game_loop                                        (it takes six seconds)

    The game draws 60 frames per second; its jobs run on two worker threads. One of the ranks leaves
    in the middle and comes back: the others go on drawing, and play on with it in a new group. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "help.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

typedef std::chrono::steady_clock Clock;
static const int FRAMES = 360, LEAVES_AT = 120;
static const uint32_t BUDGET_US = 1000;
static const uint64_t COUNT = 1 << 20; /* floats: 4 MiB, as much as many frames can send */

static double ms_since(Clock::time_point from) {
    return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

/* Processor time of this thread: other programs on this machine do not count. */
static double thread_ms() {
#ifdef CLOCK_THREAD_CPUTIME_ID
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
#else
    return ms_since(Clock::time_point());
#endif
}

/* Jobs of the game itself, for two worker threads. */
class Jobs {
    std::mutex lock;
    std::condition_variable changed;
    std::queue<std::function<void()>> waiting;
    std::vector<std::thread> workers;
    bool over = false;

    void work() {
        std::unique_lock<std::mutex> hold(lock);
        for (;;) {
            changed.wait(hold, [this] { return over || !waiting.empty(); });
            if (waiting.empty()) return;
            const std::function<void()> job = waiting.front();
            waiting.pop();
            hold.unlock();
            job();
            hold.lock();
        }
    }

public:
    Jobs() {
        for (int i = 0; i < 2; ++i)
            workers.emplace_back([this] { work(); });
    }
    ~Jobs() {
        lock.lock();
        over = true;
        lock.unlock();
        changed.notify_all();
        for (std::thread &t : workers)
            t.join();
    }
    void start(const std::function<void()> &job) {
        lock.lock();
        waiting.push(job);
        lock.unlock();
        changed.notify_one();
    }
};

/* The network as the game sees it: everything that takes time is started, and polled each frame.
   Between two frames it is in one of four states. */
class Net {
    cdp_tcp_desc desc;
    cdp_starting *starting = NULL;
    cdp_group *group = NULL, *leaving = NULL;
    cdp_work work;
    bool adding = false;
    std::vector<float> x;

public:
    int sums = 0, wrong = 0, joined = 0, failed = 0;

    explicit Net(const cdp_tcp_desc &d) : desc(d), x(COUNT) {
        desc.group.no_thread = true;
        desc.group.logger.level = CDP_LOG_SILENT; /* that a rank leaves is a part of this game */
        desc.init_timeout_ms = 3000;
    }

    /* The others are told in the frames that follow; until then this rank cannot join again. */
    void leave() {
        cdp_init_cancel(starting);
        starting = NULL;
        if (group) leaving = group;
        group = NULL;
        adding = false;
    }
    /* True: the group is destroyed, and nothing is left to call. A game that is closed and has no
       more frames may call cdp_group_destroy() in between, which ends leaving at once. */
    bool has_left() {
        if (cdp_group_leave(leaving, BUDGET_US) == CDP_PENDING) return false;
        leaving = NULL;
        return true;
    }

    /* The game's own work: it writes what is added up next. */
    void fill() {
        if (group && !adding) x.assign(COUNT, (float)(cdp_rank(group) + 1));
    }

    void frame() {
        cdp_status st = CDP_OK;
        if (!has_left()) return;
        if (!group && !starting) st = cdp_init_start(&desc, &starting);
        if (starting) {
            st = cdp_init_poll(starting, BUDGET_US, &group);
            if (st == CDP_PENDING) return;
            starting = NULL; /* it has ended, well or not: then the next frame begins another */
            if (st == CDP_OK) ++joined;
        } else if (!adding && group) {
            st = cdp_allreduce_async(
                group, NULL, x.data(), COUNT, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work);
            adding = st == CDP_OK;
        } else if (adding) {
            st = cdp_work_poll(work, BUDGET_US);
            if (st == CDP_PENDING) return;
            adding = false;
            const uint32_t n = cdp_size(group);
            if (st == CDP_OK) ++sums;
            if (st == CDP_OK && x[COUNT - 1] != (float)(n * (n + 1) / 2)) ++wrong;
        }
        if (st >= CDP_OK) return;
        ++failed;
        leave(); /* of a group that has failed */
    }
};

static void histogram(uint32_t rank, const std::vector<double> &ms) {
    static const double upto[] = {0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 4.0, 1e9};
    double from = 0;
    for (const double to : upto) {
        int n = 0;
        for (const double t : ms)
            n += t >= from && t < to;
        std::printf("rank %u: network, %5.2f ms and more: %3d frames %.*s\n", rank, from, n, n / 8,
            "##############################################");
        from = to;
    }
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "17_game_loop: a game adds up an array in frames of 60 Hz and misses none.\n"
            "usage: cdprun -n 4 ./game_loop"))
        return 0;
    cdp_tcp_desc d = cdp_tcp_desc();
    if (cdp_tcp_desc_from_env(&d) != CDP_OK) return cdp_print_error(stderr);
    const uint32_t rank = d.group.rank, leaver = d.group.world_size - 1;
    std::vector<double> spent, frames;
    std::atomic<uint64_t> simulated(0);
    int late = 0;
    Jobs jobs;
    Net net(d);
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < FRAMES; ++i) {
        const Clock::time_point frame = Clock::now();
        for (int k = 0; k < 4; ++k) /* the game: physics, sounds, whatever it has */
            jobs.start([&simulated] {
                for (int n = 0; n < 20000; ++n)
                    simulated += 1;
            });
        if (rank == leaver && leaver > 0 && i == LEAVES_AT) net.leave(); /* in mid-operation */
        net.fill();
        const double before = thread_ms();
        if (rank != leaver || i < LEAVES_AT || i > LEAVES_AT + 30)
            net.frame();
        else
            (void)net.has_left();
        spent.push_back(thread_ms() - before);
        frames.push_back(ms_since(frame));
        if (frames.back() > 1000.0 / 60) ++late;
        std::this_thread::sleep_until(begin + std::chrono::microseconds((i + 1) * 1000000LL / 60));
    }
    if (rank == 0) histogram(rank, spent);
    int over = 0;
    for (const double ms : spent)
        over += ms > BUDGET_US * 1e-3 + 1.0; /* 1 ms beyond the budget is one frame in a hundred */
    net.leave();
    while (!net.has_left()) {
    }
    const bool good =
        net.sums > 0 && !net.wrong && over <= FRAMES / 100 && net.joined >= (leaver > 0 ? 2 : 1);
    std::printf("rank %u: %d sums, %d wrong; joined %d times, %d failures seen; network above 2 ms "
                "in %d of %d frames, %d frames late: %s\n",
        rank, net.sums, net.wrong, net.joined, net.failed, over, FRAMES, late,
        good ? "right" : "WRONG");
    return good ? 0 : 1;
}
