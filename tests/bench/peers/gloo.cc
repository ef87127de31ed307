/* The measurements of collectives.c for Gloo over TCP on the loopback interface. Its allreduce has several algorithms: each
   gets a line of its own. The program forks its ranks; they meet in a folder (a file store) that is removed at the end. */
#include "../measure.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <string>
#include <vector>

static std::string folder;
static std::shared_ptr<gloo::Context> context, busy;
static uint32_t tag;

static void add(void *out, const void *a, const void *b, size_t n) {
    float *__restrict o = static_cast<float *>(out);
    const float *x = static_cast<const float *>(a), *y = static_cast<const float *>(b);
    for (size_t i = 0; i < n; ++i) o[i] = x[i] + y[i];
}

/* The older classes are made once for one size and one array, and work in place. */
struct prepared {
    uint64_t bytes = 0;
    std::unique_ptr<gloo::Algorithm> algorithm;
};

static void halving_doubling(m_case *c, prepared &p, const std::shared_ptr<gloo::Context> &ctx) {
    if (p.bytes != c->bytes) {
        p.algorithm.reset(new gloo::AllreduceHalvingDoubling<float>(ctx, std::vector<float *>{c->out}, static_cast<int>(c->count)));
        p.bytes = c->bytes;
    }
    memcpy(c->out, c->in, c->bytes);
    p.algorithm->run();
}

static bool allreduce(m_case *c) {
    static const char *const names[] = {"tcp/ring", "tcp/bcube", "tcp/hd", "tcp/hd_busypoll"};
    static prepared hd, hd_busy;
    c->transport = names[c->variant];
    if (c->variant == 2) halving_doubling(c, hd, context);
    else if (c->variant == 3) halving_doubling(c, hd_busy, busy);
    else {
        gloo::AllreduceOptions o(context);
        o.setInput(c->in, c->count);
        o.setOutput(c->out, c->count);
        o.setReduceFunction(add);
        o.setAlgorithm(c->variant ? gloo::AllreduceOptions::Algorithm::BCUBE : gloo::AllreduceOptions::Algorithm::RING);
        o.setTag(++tag);
        gloo::allreduce(o);
    }
    return c->variant + 1 < (busy ? 4u : 3u);
}

static void reduce_scatter(m_case *c) {
    static uint64_t made_for;
    static std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> algorithm;
    static std::vector<float> work; /* in place: it destroys its input */
    if (made_for != c->bytes) {
        work.resize(c->bytes / 4);
        algorithm.reset(new gloo::ReduceScatterHalvingDoubling<float>(context, std::vector<float *>{work.data()}, static_cast<int>(c->bytes / 4), std::vector<int>(c->ranks, static_cast<int>(c->count))));
        made_for = c->bytes;
    }
    memcpy(work.data(), c->in, c->bytes);
    algorithm->run();
    memcpy(c->out, work.data(), c->count * 4);
}

static bool call(m_case *c) {
    switch (c->op) {
    case M_ALLREDUCE: return allreduce(c);
    case M_REDUCE_SCATTER: reduce_scatter(c); return false;
    case M_ALLGATHER: {
        gloo::AllgatherOptions o(context);
        o.setInput(c->in, c->count);
        o.setOutput(c->out, c->count * c->ranks);
        o.setTag(++tag);
        gloo::allgather(o);
        return false;
    }
    case M_BROADCAST: {
        gloo::BroadcastOptions o(context);
        o.setOutput(c->out, c->count);
        o.setRoot(0);
        o.setTag(++tag);
        gloo::broadcast(o);
        return false;
    }
    case M_ALLTOALL: {
        gloo::AlltoallOptions o(context);
        o.setInput(c->in, c->bytes / 4);
        o.setOutput(c->out, c->bytes / 4);
        o.setTag(++tag);
        gloo::alltoall(o);
        return false;
    }
    case M_BARRIER: {
        gloo::BarrierOptions o(context);
        o.setTag(++tag);
        gloo::barrier(o);
        return false;
    }
    default: {
        auto in = context->createUnboundBuffer(c->in, c->bytes), out = context->createUnboundBuffer(c->out, c->bytes);
        if (c->rank == 0) in->send(1, 7), in->waitSend();
        out->recv(static_cast<int>(1 - c->rank), 7), out->waitRecv();
        if (c->rank == 1) out->send(0, 7), out->waitSend();
        return false;
    }
    }
}

static std::shared_ptr<gloo::Context> connect(uint32_t rank, const char *name) {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore files(folder);
    gloo::rendezvous::PrefixStore store(name, files);
    auto c = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank), static_cast<int>(m_opt.ranks));
    c->setTimeout(std::chrono::seconds(60));
    c->connectFullMesh(store, device);
    return c;
}

static int rank_main(uint32_t rank) {
    static const bool has[M_OPS] = {true, true, true, true, true, true, true};
    try {
        context = connect(rank, "plain");
        if (m_opt.ranks == 2) { /* more ranks than cores would only stand in each other's way */
            busy = connect(rank, "busy");
            busy->getPair(static_cast<int>(1 - rank))->setSync(true, true);
        }
        return m_run("gloo", "tcp", has, call) ? 0 : 3; /* a wrong result is Gloo's: the others go on */
    } catch (const std::exception &e) {
        fprintf(stderr, "gloo: %s\n", e.what());
        return 1;
    }
}

int main(int argc, char **argv) {
    const int status = m_parse(argc, argv);
    char name[] = "/tmp/gloo-store-XXXXXX";
    int bad;
    if (status >= 0) return status;
    m_open();
    if (!mkdtemp(name)) m_die("mkdtemp");
    folder = name;
    bad = m_fork(rank_main);
    return system(("rm -rf " + folder).c_str()) ? 1 : bad;
}
