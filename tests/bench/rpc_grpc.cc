/* rpc_grpc.cc - the side of rpc.sh that gRPC takes: a server and a caller, two processes

       g++ -O2 rpc_grpc.cc -o rpc_grpc $(pkg-config --cflags --libs grpc++)
       ./rpc_grpc sync|async unix|tcp

   sync: a server with a thread for each call, and callers that wait. async: a server and a caller
   with completion queues, one thread each. Bodies are plain bytes (ByteBuffer), so that nothing is
   encoded. Orders come as rpc.c says; BYTES is the length of the result. */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>

#include <sys/wait.h>
#include <unistd.h>

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

using grpc::ByteBuffer;
using grpc::Status;

static const char *const METHOD = "/bench.Calls/Result";
static const size_t MOST = 64u << 20;
static char *data;

static ByteBuffer bytes_of(const void *from, size_t bytes) {
    /* not copied: the memory is there as long as the process */
    const grpc::Slice slice(const_cast<void *>(from), bytes, grpc::Slice::STATIC_SLICE);
    return ByteBuffer(&slice, 1);
}
static ByteBuffer result_of(const ByteBuffer &request) {
    uint64_t bytes = 0;
    grpc::Slice slice;
    if (request.Length() == 8 && request.DumpToSingleSlice(&slice).ok())
        memcpy(&bytes, slice.begin(), 8);
    return bytes_of(data, bytes);
}

/* ---- servers ---- */

class SyncService final : public grpc::Service {
public:
    SyncService() {
        AddMethod(new grpc::internal::RpcServiceMethod(METHOD,
            grpc::internal::RpcMethod::NORMAL_RPC,
            new grpc::internal::RpcMethodHandler<SyncService, ByteBuffer, ByteBuffer>(
                [](SyncService *, grpc::ServerContext *, const ByteBuffer *in, ByteBuffer *out) {
                    *out = result_of(*in);
                    return Status::OK;
                },
                this)));
    }
};

struct AsyncCall {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream{&context};
    ByteBuffer in;
    int state = 0;
};

static void serve_async(grpc::AsyncGenericService *service, grpc::ServerCompletionQueue *queue) {
    auto next = [&]() {
        AsyncCall *c = new AsyncCall;
        service->RequestCall(&c->context, &c->stream, queue, queue, c);
    };
    void *tag;
    bool ok;
    for (int i = 0; i < 32; ++i)
        next();
    while (queue->Next(&tag, &ok)) {
        AsyncCall *c = static_cast<AsyncCall *>(tag);
        if (!ok || c->state == 2) {
            delete c;
        } else if (c->state++ == 0) {
            next();
            c->stream.Read(&c->in, c);
        } else {
            c->stream.WriteAndFinish(result_of(c->in), grpc::WriteOptions(), Status::OK, c);
        }
    }
}

static void serve(bool sync, const std::string &address, int ready) {
    grpc::ServerBuilder builder;
    grpc::AsyncGenericService generic;
    SyncService service;
    std::unique_ptr<grpc::ServerCompletionQueue> queue;
    int port = 1;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    if (sync) {
        builder.RegisterService(&service);
    } else {
        builder.RegisterAsyncGenericService(&generic);
        queue = builder.AddCompletionQueue();
    }
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (!server || write(ready, &port, sizeof port) != sizeof port) _exit(1);
    if (sync)
        server->Wait();
    else
        serve_async(&generic, queue.get());
}

/* ---- the caller ---- */

struct AsyncResult {
    grpc::ClientContext context;
    ByteBuffer out;
    Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
};

class Caller {
public:
    explicit Caller(const std::string &address) {
        grpc::ChannelArguments args;
        args.SetMaxReceiveMessageSize(-1);
        channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
        stub.reset(new grpc::GenericStub(channel));
    }
    void call(uint64_t bytes) {
        const grpc::internal::RpcMethod method(METHOD, grpc::internal::RpcMethod::NORMAL_RPC);
        grpc::ClientContext context;
        ByteBuffer out;
        context.set_wait_for_ready(true);
        const Status st = grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(
            channel.get(), method, &context, bytes_of(&bytes, bytes ? 8 : 0), &out);
        good(st, out.Length(), bytes);
    }
    void start(uint64_t bytes) {
        AsyncResult *r = new AsyncResult;
        r->context.set_wait_for_ready(true);
        asked = bytes;
        r->reader =
            stub->PrepareUnaryCall(&r->context, METHOD, bytes_of(&asked, bytes ? 8 : 0), &queue);
        r->reader->StartCall();
        r->reader->Finish(&r->out, &r->status, r);
    }
    void finish() {
        void *tag;
        bool ok;
        if (!queue.Next(&tag, &ok)) _exit(1);
        AsyncResult *r = static_cast<AsyncResult *>(tag);
        good(r->status, r->out.Length(), asked);
        delete r;
    }

private:
    static void good(const Status &st, size_t length, uint64_t bytes) {
        if (st.ok() && length == bytes) return;
        fprintf(stderr, "gRPC: %s, %zu bytes\n", st.error_message().c_str(), length);
        _exit(1);
    }
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<grpc::GenericStub> stub;
    grpc::CompletionQueue queue;
    uint64_t asked = 0;
};

static double now_us() {
    return std::chrono::duration<double, std::micro>(
        std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

static double measure(Caller &caller, bool sync, bool flight, uint64_t bytes, double ms) {
    const double from = now_us(), until = from + 1000 * ms;
    uint64_t n = 0;
    if (flight)
        for (int i = 0; i < 15; ++i)
            caller.start(bytes);
    while (now_us() < until || n < 3) {
        if (sync && !flight) {
            caller.call(bytes);
        } else {
            caller.start(bytes);
            caller.finish();
        }
        ++n;
    }
    if (flight)
        for (int i = 0; i < 15; ++i, ++n)
            caller.finish();
    return (now_us() - from) / static_cast<double>(n);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const bool sync = strcmp(argv[1], "sync") == 0, tcp = strcmp(argv[2], "tcp") == 0;
    const std::string path = "unix:/tmp/rpc_grpc." + std::to_string(getpid());
    char line[100], op[16];
    unsigned long long bytes;
    double ms;
    int ready[2], port = 0;
    data = new char[MOST];
    memset(data, 1, MOST);
    if (pipe(ready) != 0) return 1;
    const pid_t child = fork();
    if (child == 0) {
        serve(sync, tcp ? "127.0.0.1:0" : path, ready[1]);
        _exit(0);
    }
    if (read(ready[0], &port, sizeof port) != sizeof port) return 1;
    {
        Caller caller(tcp ? "127.0.0.1:" + std::to_string(port) : path);
        while (fgets(line, sizeof line, stdin)
            && sscanf(line, "%15s %llu %lf", op, &bytes, &ms) == 3) {
            const bool flight = strcmp(op, "flight") == 0;
            if (flight || strcmp(op, "call") == 0)
                printf("%.3f\n", measure(caller, sync, flight, bytes, ms));
            else
                printf("-\n");
            fflush(stdout);
        }
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    if (!tcp) unlink(path.c_str() + 5);
    return 0;
}
