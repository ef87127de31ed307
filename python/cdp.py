# SPDX-License-Identifier: MIT-0 OR Unlicense
"""cdp.py - cdp from Python: one file, the standard library alone, arrays of numpy in place.

    import cdp, numpy
    world = cdp.init()                    # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as in C
    x = numpy.ones(3, numpy.float32)
    world.allreduce(x)                    # in place: x is the sum over all ranks now

    python3 -m cdp run -n 4 python3 program.py         is cdprun

The library is compiled when it is first needed, with $CC or cc, from the headers beside this file or
in the folder above, and kept in ~/.cache/cdp; see build(). $CDP_LIBRARY names one that exists.
docs/PYTHON.md is the guide; the heads of the headers are the manual.

What this file knows of C is checked: the compiler compares PROTOTYPES with the headers, and the
library says where the members of STRUCTS are.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes as C
import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sys
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

HERE = os.path.dirname(os.path.abspath(__file__))
HEADERS = ("cdp_tcp.h", "cdp_rpc.h", "cdp_checkpoint.h")

# ---- what C has: structs with all their members; NAME:STRUCT is a struct inside another one ----

STRUCTS = """
cdp_error status rank peer origin kind round op_seq sys_errno file line text
cdp_logger func user level lines_per_second level_at
cdp_group_desc rank world_size hub transport timeout_ms small_bytes piece_bytes expose_bytes spin_us
    no_spin no_thread reproducible choices choice_count records dump_path max_pending stage_bytes
    window_bytes operations waits os logger:cdp_logger
cdp_tcp_desc group:cdp_group_desc master_addr master_port external_store job_key trust_network mac
    file store exchange exchange_user listen_addr interfaces connections first_port last_port
    no_shared_memory ring_bytes has_listen_fd listen_fd job connect_all init_timeout_ms alone_ok
    backend
cdp_request kind in out count dtype op root timeout_ms in_counts out_counts factor accumulate
cdp_work group seq
cdp_message source tag count dtype
cdp_iov data bytes
cdp_bytes data bytes
cdp_blob data room max_bytes alloc release user lengths bytes allocated
cdp_param name data grad count dtype rows sparse device delayed uses
cdp_buffer name data count dtype
cdp_ddp_desc group params param_count first_bucket_bytes bucket_bytes bucket_list bucket_list_count
    no_broadcast buffers buffer_count no_buffer_broadcast buffer_hook user divisor predivide
    accumulate find_unused static_graph rebuild join join_throw join_effective join_hook name
    log_steps grad_arena
cdp_ddp_stats steps bucket_count bytes_per_step sent_bytes backward_ns comm_ns exposed_ns hidden
    total_backward_ns total_comm_ns total_exposed_ns active_ranks unused_count rebuilt
    can_set_static_graph unused_bytes forward_ns overlap_ns total_forward_ns total_overlap_ns
    avg_forward_ns avg_backward_ns avg_comm_ns avg_overlap_ns
cdp_file_store_desc path world_size timeout_ms private_file os
cdp_tcp_store_desc host port addrs addr_count timeout_ms connect_timeout_ms will_key
    will_value:cdp_bytes max_value_bytes job_key count_me os logger:cdp_logger loop
cdp_store_server_desc host addr port has_listen_fd listen_fd max_key_bytes max_value_bytes max_list
    max_total_bytes max_reply_bytes max_clients handshake_timeout_ms job_key trust_network no_thread
    os logger:cdp_logger loop
cdp_rref rpc slot
cdp_args iov iov_count rrefs rref_count tensors tensor_count
cdp_rpc_function name func user flags max_running max_bytes max_tensors max_rrefs allow allow_count
    backward
cdp_rpc_desc group number name functions function_count workers no_workers no_help fail_when_full
    timeout_ms max_calls max_call_bytes max_queue max_depth max_message_bytes max_queue_bytes
    max_rrefs max_contexts survivors lost leaked user
cdp_rpc_request rpc user from function deadline_ns one_way remote data bytes rrefs rref_count on
    tensors tensor_count ctx on_rref:cdp_rref
cdp_call status ran code data bytes rrefs rref_count tensor_count tensors error:cdp_error
    into:cdp_iov priv
cdp_call_desc to on:cdp_rref function timeout_ms args:cdp_args one_way in_order detached ctx label
    done user release release_user
cdp_layout mesh dtype ndim shape place
cdp_dtensor layout:cdp_layout data owned
cdp_item name tensor:cdp_dtensor ndim shape file part first count copy copies
cdp_ckpt_blob name data bytes room per_rank
cdp_ckpt_desc group path items item_count blobs blob_count file_bytes keep keep_every stage_bytes
    late no_sync no_rename incremental no_verify partial cast disk_bytes_per_us os progress user
cdp_ckpt_info step bytes_written bytes_read total_bytes files writes reads write_ns sync_ns commit_ns
    read_ns stage_bytes stall_ns missing surplus cast predicted_us linked_files linked_bytes
cdp_ckpt_entry name file dtype ndim shape bytes blob layout
"""

# Compiled behind the headers: the compiler refuses what differs from them.
PROTOTYPES = """
const cdp_error *cdp_last_error(void);
const char *cdp_status_name(cdp_status status);
const char *cdp_dtype_name(cdp_dtype dtype);
const char *cdp_reduce_name(cdp_reduce_op op);
const char *cdp_coll_name(cdp_coll_kind kind);
uint64_t cdp_dtype_size(cdp_dtype dtype);
const char *cdp_build(void);
cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out);
cdp_status cdp_init_from_env(const cdp_tcp_desc *desc, cdp_group **out);
cdp_status cdp_init_url(const char *url, const cdp_tcp_desc *desc, cdp_group **out);
cdp_status cdp_group_new(cdp_group *parent, const uint32_t *ranks, uint32_t count, cdp_group **out);
cdp_status cdp_group_split(cdp_group *parent, uint32_t color, uint32_t key, cdp_group **out);
void cdp_group_destroy(cdp_group *group);
uint32_t cdp_rank(const cdp_group *group);
uint32_t cdp_size(const cdp_group *group);
cdp_status cdp_group_status(cdp_group *group);
void cdp_group_abort(cdp_group *group, const char *reason);
cdp_status cdp_group_dump(cdp_group *group, const char *path);
uint64_t cdp_describe(cdp_group *group, char *text, uint64_t room);
cdp_status cdp_poll(cdp_group *group, uint32_t budget_us);
cdp_status cdp_start(cdp_group *group, const cdp_request *request, cdp_work *out);
cdp_status cdp_work_wait_for(cdp_work work, uint32_t timeout_ms);
cdp_status cdp_work_test(cdp_work work);
cdp_status cdp_work_cancel(cdp_work work);
cdp_status cdp_send_async(cdp_group *group, const void *data, uint64_t count, cdp_dtype dtype, uint32_t to,
    uint32_t tag, cdp_work *work);
cdp_status cdp_recv_async(cdp_group *group, void *data, uint64_t count, cdp_dtype dtype, uint32_t from,
    uint32_t tag, cdp_work *work);
cdp_status cdp_recv_any_async(cdp_group *group, void *data, uint64_t room, cdp_dtype dtype, uint32_t from,
    uint32_t tag, cdp_message *got, cdp_work *work);
cdp_status cdp_probe(cdp_group *group, uint32_t from, uint32_t tag, cdp_message *got);
cdp_status cdp_monitored_barrier(cdp_group *group, uint32_t timeout_ms);
cdp_status cdp_allgather_bytes(cdp_group *group, const void *data, uint64_t bytes, cdp_blob *all);
cdp_status cdp_gather_bytes(cdp_group *group, const void *data, uint64_t bytes, uint32_t root, cdp_blob *all);
cdp_status cdp_broadcast_bytes(cdp_group *group, const void *data, uint64_t bytes, uint32_t root, cdp_blob
    *got);
cdp_status cdp_scatter_bytes(cdp_group *group, const void *data, const uint64_t *lengths, uint32_t root,
    cdp_blob *mine);
void cdp_blob_free(cdp_group *group, cdp_blob *blob);
cdp_status cdp_ddp_create(const cdp_ddp_desc *desc, cdp_ddp **out);
void cdp_ddp_destroy(cdp_ddp *ddp);
cdp_status cdp_ddp_rebind(cdp_ddp *ddp, cdp_group *group);
void *cdp_ddp_grad(cdp_ddp *ddp, uint32_t index);
bool cdp_ddp_used(const cdp_ddp *ddp, uint32_t index);
void cdp_ddp_zero_grad(cdp_ddp *ddp);
cdp_status cdp_ddp_forward_begin(cdp_ddp *ddp);
cdp_status cdp_ddp_backward_begin(cdp_ddp *ddp);
cdp_status cdp_ddp_ready(cdp_ddp *ddp, uint32_t index);
cdp_status cdp_ddp_unused(cdp_ddp *ddp, uint32_t index);
cdp_status cdp_ddp_backward_end(cdp_ddp *ddp);
cdp_status cdp_ddp_no_sync(cdp_ddp *ddp, bool on);
bool cdp_ddp_is_no_sync(const cdp_ddp *ddp);
cdp_status cdp_ddp_join(cdp_ddp *ddp);
cdp_status cdp_ddp_verify(cdp_ddp *ddp);
cdp_status cdp_ddp_clip(cdp_ddp *ddp, double max_norm, double *norm);
cdp_ddp_stats cdp_ddp_stats_of(const cdp_ddp *ddp);
cdp_status cdp_hash_store_create(const cdp_hash_store_desc *desc, cdp_store **out);
cdp_status cdp_file_store_create(const cdp_file_store_desc *desc, cdp_store **out);
cdp_status cdp_tcp_store_create(const cdp_tcp_store_desc *desc, cdp_store **out);
cdp_status cdp_prefix_store_create(cdp_store *inner, const char *prefix, cdp_store **out);
cdp_status cdp_store_server_create(const cdp_store_server_desc *desc, cdp_store_server **out);
uint16_t cdp_store_server_port(const cdp_store_server *server);
void cdp_store_server_destroy(cdp_store_server *server);
cdp_status cdp_store_set(cdp_store *store, const char *key, const void *value, uint64_t bytes);
cdp_status cdp_store_get(cdp_store *store, const char *key, void **value, uint64_t *bytes, uint32_t
    timeout_ms);
cdp_status cdp_store_add(cdp_store *store, const char *key, int64_t delta, int64_t *sum);
cdp_status cdp_store_compare_set(cdp_store *store, const char *key, const void *expected, uint64_t
    expected_bytes, const void *desired, uint64_t desired_bytes, void **value, uint64_t *bytes);
cdp_status cdp_store_append(cdp_store *store, const char *key, const void *value, uint64_t bytes);
cdp_status cdp_store_wait(cdp_store *store, const char *const *keys, uint32_t count, uint32_t timeout_ms);
cdp_status cdp_store_check(cdp_store *store, const char *const *keys, uint32_t count, bool *all_there);
cdp_status cdp_store_delete(cdp_store *store, const char *key, bool *was_there);
cdp_status cdp_store_num_keys(cdp_store *store, int64_t *count);
cdp_status cdp_store_list_keys(cdp_store *store, cdp_bytes **keys, uint64_t *count);
cdp_status cdp_store_barrier(cdp_store *store, const char *key, uint32_t count, uint32_t timeout_ms);
cdp_status cdp_store_queue_push(cdp_store *store, const char *key, const void *value, uint64_t bytes);
cdp_status cdp_store_queue_pop(cdp_store *store, const char *key, void **value, uint64_t *bytes, uint32_t
    timeout_ms);
void cdp_store_free(cdp_store *store, void *memory);
void cdp_store_destroy(cdp_store *store);
uint32_t cdp_rpc_id(const char *name);
cdp_status cdp_rpc_create(const cdp_rpc_desc *desc, cdp_rpc **out);
cdp_status cdp_rpc_shutdown(cdp_rpc *rpc, uint32_t timeout_ms);
void cdp_rpc_destroy(cdp_rpc *rpc);
cdp_status cdp_rpc_serve(cdp_rpc *rpc, uint32_t timeout_ms);
cdp_status cdp_rpc_start(cdp_rpc *rpc, const cdp_call_desc *desc, cdp_call *call);
cdp_status cdp_call_wait_for(cdp_call *call, uint32_t timeout_ms);
void cdp_call_free(cdp_call *call);
cdp_status cdp_rpc_reply(cdp_rpc_request *request, const cdp_args *results);
cdp_status cdp_rpc_fail(cdp_rpc_request *request, int32_t code, const char *text);
cdp_status cdp_ckpt_create(const cdp_ckpt_desc *desc, cdp_ckpt **out);
void cdp_ckpt_destroy(cdp_ckpt *ckpt);
cdp_status cdp_ckpt_save(cdp_ckpt *ckpt, uint64_t step);
cdp_status cdp_ckpt_load(cdp_ckpt *ckpt, const char *path, uint64_t step, uint64_t *found);
cdp_ckpt_info cdp_ckpt_info_of(const cdp_ckpt *ckpt);
cdp_status cdp_ckpt_open(const char *path, const cdp_os *os, cdp_ckpt_reader **out);
void cdp_ckpt_close(cdp_ckpt_reader *reader);
uint32_t cdp_ckpt_count(const cdp_ckpt_reader *reader);
cdp_ckpt_entry cdp_ckpt_entry_at(const cdp_ckpt_reader *reader, uint32_t index);
cdp_status cdp_ckpt_read(cdp_ckpt_reader *reader, uint32_t index, const cdp_box *box, void *out);
"""

# Constants that the library has no name for at run time.
CONSTANTS = "CDP_DTYPE_COUNT CDP_REDUCE_COUNT CDP_COLL_COUNT CDP_ANY_RANK CDP_NO_COLOR CDP_CKPT_LATEST"


def _structs() -> dict[str, list[tuple[str, str]]]:
    """Members of each struct, as (name, struct that the member is, or '')."""
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in re.split(r"\n(?! )", STRUCTS.strip()):
        name, *members = entry.split()
        found[name] = [(m.partition(":")[0], m.partition(":")[2]) for m in members]
    return found


# ---- the library: built from the headers, or found ----

TABLE = r"""
#define CDP__KIND(x) _Generic((x), _Bool: '?', float: 'f', double: 'd', signed char: 'i', short: 'i', \
    int: 'i', long: 'i', long long: 'i', unsigned char: 'u', unsigned short: 'u', unsigned: 'u', \
    unsigned long: 'u', unsigned long long: 'u', default: 'P')
#define CDP__ROW(s, m) {offsetof(s, m), sizeof ((s *)0)->m, CDP__KIND(((s *)0)->m)}
CDP_API uint64_t cdp_py_row(uint32_t row, uint32_t column);
CDP_API const char *cdp_py_knows(void);
"""


def source(check: bool = False) -> str:
    """The C file of the library: headers, PROTOTYPES, and a table of where members are. check: without
    the implementation, and so that -Werror=missing-field-initializers refuses it unless STRUCTS has all
    members of each struct."""
    text = "" if check else "#define CDP_IMPLEMENTATION\n"
    text += "".join(f'#include <{header}>\n' for header in HEADERS) + PROTOTYPES + TABLE
    text += "void cdp_built_with(void) { }\n" if check else ""
    rows = []
    for struct, members in _structs().items():
        rows.append(f"{{0, sizeof({struct}), 's'}},")
        rows += [f"CDP__ROW({struct}, {m})," for m, _ in members]
        if check:
            text += f"const {struct} cdp__py_{struct} = {{" + "{0}, " * len(members) + "};\n"
    rows += [f"{{{name}, 0, 'c'}}," for name in CONSTANTS.split()]
    return text + "\n".join(["static const uint64_t cdp__py_rows[][3] = {", *rows, "};",
        "uint64_t cdp_py_row(uint32_t row, uint32_t column) { return cdp__py_rows[row][column]; }",
        f'const char *cdp_py_knows(void) {{ return "{_knows()}"; }}', ""])


def _knows() -> str:
    return hashlib.sha256((STRUCTS + PROTOTYPES + TABLE + CONSTANTS).encode()).hexdigest()[:16]


def headers() -> str:
    """The folder of the headers: this file's, or the one above."""
    for folder in (HERE, os.path.dirname(HERE)):
        if os.path.exists(os.path.join(folder, HEADERS[0])):
            return folder
    raise FileNotFoundError(f"cdp: {HEADERS[0]} is neither in {HERE} nor above it: copy the cdp*.h there,"
                            " or set CDP_LIBRARY to a library that build() made")


def _compiler() -> list[str]:
    return [*os.environ.get("CC", "cc").split(), "-O2", *os.environ.get("CFLAGS", "").split()]


def _compile(text: str, out: str, folder: str, flags: Sequence[str]) -> str:
    command = [*_compiler(), *flags, f"-I{folder}", "-x", "c", "-"]
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    made = f"{out}.{os.getpid()}"  # renamed when it is whole: another rank may look for it
    done = subprocess.run([*command, "-o", made, "-pthread", "-lm"], input=text, text=True,
                          stderr=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"cdp: {' '.join(command)} failed:\n{done.stderr[-4000:]}")
    os.replace(made, out)
    return out


def build(out: Optional[str] = None, folder: Optional[str] = None, flags: Sequence[str] = ()) -> str:
    """Compile the library with $CC (default: cc) and $CFLAGS from the headers in `folder` (default: headers())
    and return its path: `out`, or a file in ~/.cache/cdp (XDG_CACHE_HOME) that is made once for each
    version of the headers. RuntimeError with what the compiler says."""
    return _made("libcdp.so", source(), out, folder or headers(), ["-shared", "-fPIC", *flags])


def build_cdprun(out: Optional[str] = None) -> str:
    """Compile the launcher; returns its path. As build()."""
    return _made("cdprun", '#include <tools/cdprun.c>\n', out, headers(), ["-O1"])


def _found(name: str, variable: str, make: Callable[[], str]) -> str:
    """What a variable names, or a wheel has brought along; else it is made."""
    brought = os.path.join(HERE, "cdp_library", name)
    return os.environ.get(variable) or (brought if os.path.exists(brought) else make())


def _made(name: str, text: str, out: Optional[str], folder: str, flags: Sequence[str]) -> str:
    if out:
        return _compile(text, out, folder, flags)
    state = hashlib.sha256(repr((text, _compiler(), flags)).encode())
    for root in (folder, os.path.join(folder, "tools")):
        for file in sorted(os.listdir(root)) if os.path.isdir(root) else []:
            if file.startswith("cdp") and file.endswith((".h", ".c")):
                with open(os.path.join(root, file), "rb") as f:
                    state.update(f.read())
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "cdp")
    os.makedirs(cache, exist_ok=True)
    path = os.path.join(cache, f"{state.hexdigest()[:16]}-{name}")
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the ranks of a job begin at once: one of them compiles
        return path if os.path.exists(path) else _compile(text, path, folder, flags)


_TYPES = {"void": None, "bool": C.c_bool, "double": C.c_double, "int32_t": C.c_int32, "int64_t": C.c_int64,
          "uint16_t": C.c_uint16, "uint32_t": C.c_uint32, "uint64_t": C.c_uint64}


class _Library:
    def __init__(self, path: str):
        self.c = C.CDLL(path)
        self.c.cdp_py_knows.restype = C.c_char_p
        self.c.cdp_py_row.restype = C.c_uint64
        if self.c.cdp_py_knows().decode() != _knows():
            raise RuntimeError(f"cdp: {path} was built by another version of cdp.py: build it again")
        self.row = 0
        self.types: dict[str, Any] = {}
        for name, members in _structs().items():
            self.types[name] = self._struct(name, members)
        self.constants = {name: self._row()[0] for name in CONSTANTS.split()}
        self.functions = {m[2]: self._function(*m.groups()) for m in
                          re.finditer(r"(\S.*?)(\w+)\((.*?)\);", " ".join(PROTOTYPES.split()))}
        self.dtypes = self._names("dtype", "CDP_DTYPE_COUNT")
        self.ops = self._names("reduce", "CDP_REDUCE_COUNT")
        self.kinds = self._names("coll", "CDP_COLL_COUNT")

    def _row(self) -> tuple[int, int, str]:
        offset, size, kind = (self.c.cdp_py_row(self.row, column) for column in range(3))
        self.row += 1
        return offset, size, chr(kind)

    def _struct(self, name: str, members: list[tuple[str, str]]) -> type:
        size, fields, offsets = self._row()[1], [], []
        for member, inside in members:
            offset, bytes_, kind = self._row()
            if inside:
                type_ = self.types[inside]
            elif kind == "P" and bytes_ != C.sizeof(C.c_void_p):  # an array
                type_ = C.c_char * bytes_ if member == "text" else \
                    C.c_uint8 * bytes_ if (offset | bytes_) % 8 else C.c_uint64 * (bytes_ // 8)
            else:
                type_ = {"P": C.c_void_p, "?": C.c_bool, "f": C.c_float, "d": C.c_double}.get(kind) or \
                    getattr(C, f"c_{'u' if kind == 'u' else ''}int{8 * bytes_}")
            fields.append((member, type_))
            offsets.append((member, offset, bytes_))
        made = type(name, (C.Structure,), {"_fields_": fields})
        wrong = [m for m, offset, bytes_ in offsets
                 if (getattr(made, m).offset, getattr(made, m).size) != (offset, bytes_)]
        if wrong or C.sizeof(made) != size:
            raise RuntimeError(f"cdp: {name} of the library has members that cdp.py does not know, near"
                               f" {', '.join(wrong) or 'its end'}: use cdp.py and headers of one release")
        return made

    def _function(self, result: str, name: str, arguments: str) -> Any:
        def type_of(text: str) -> Any:
            if re.match(r"const char \*\w*$", text):
                return C.c_char_p
            word = text.split()[0]
            return C.c_void_p if "*" in text else _TYPES[word] if word in _TYPES else self.types.get(word, C.c_int)
        function = getattr(self.c, name)
        function.restype = type_of(result.strip())
        function.argtypes = [type_of(a) for a in arguments.split(", ") if a != "void"]
        function.fails = result.strip() == "cdp_status"
        return function

    def _names(self, what: str, count: str) -> dict[str, int]:
        name = self.functions[f"cdp_{what}_name"]
        return {name(i).decode().replace(" ", "_").replace("-", "_"): i for i in range(1, self.constants[count])}


@functools.lru_cache(maxsize=None)
def _lib() -> _Library:
    return _Library(_found("libcdp.so", "CDP_LIBRARY", build))


def _call(name: str, *arguments: Any) -> Any:
    """Calls a function of C; texts become bytes, statuses below 0 become exceptions."""
    function = _lib().functions[name]
    result = function(*(a.encode() if isinstance(a, str) else a for a in arguments))
    if function.fails and result < 0:
        raise _error(_lib().types["cdp_error"].from_address(_lib().functions["cdp_last_error"]()), result)
    return result


def _new(name: str, *arguments: Any) -> int:
    """Calls a function whose last argument is where to store what it makes."""
    out = C.c_void_p()
    _call(name, *arguments, C.byref(out))
    return out.value or 0


# ---- errors ----


class Error(RuntimeError):
    """What a call of the library failed with; str() is the library's sentence. `rank` reports it,
    `peer` is the rank to blame and `origin` saw it first: world ranks, -1: none."""
    name = "INTERNAL"

    def __init__(self, text: str, rank: int = -1, peer: int = -1, origin: int = -1, errno: int = 0):
        super().__init__(text)
        self.rank, self.peer, self.origin, self.errno = rank, peer, origin, errno


class Invalid(Error): name = "INVALID"
class NoMemory(Error): name = "NOMEM"
class Timeout(Error): name = "TIMEOUT"
class PeerLost(Error): name = "PEER_LOST"
class Aborted(Error): name = "ABORTED"
class Mismatch(Error): name = "MISMATCH"
class Unsupported(Error): name = "UNSUPPORTED"
class IOFailed(Error): name = "IO"
class StoreFailed(Error): name = "STORE"
class WrongState(Error): name = "STATE"
class Internal(Error): name = "INTERNAL"
class Remote(Error): name = "REMOTE"
class Busy(Error): name = "BUSY"


def _error(e: Any, status: int) -> Error:
    name = _lib().functions["cdp_status_name"](status).decode()
    class_ = next((c for c in Error.__subclasses__() if c.name == name), Error)
    return class_(f"{name}: {e.text.decode(errors='replace')}", e.rank, e.peer, e.origin, e.sys_errno)


# ---- memory ----


class _Memory:
    """The memory of an object with the buffer protocol: nothing is copied, unless it is read-only."""

    def __init__(self, x: Any, write: bool, dtype: Optional[str] = None):
        try:
            view = memoryview(x)
        except (TypeError, ValueError, BufferError) as e:
            raise TypeError(f"cdp: {type(x).__name__} does not give its memory away ({e}); numpy arrays,"
                            " array.array and bytearray do, tensors of torch as t.numpy()") from None
        if not view.c_contiguous:
            raise ValueError("cdp: the array is not contiguous; pass numpy.ascontiguousarray(x)")
        if write and view.readonly:
            raise ValueError("cdp: the array is read-only, and would be written")
        self.object, self.shape = x, tuple(view.shape or ())
        self.format, self.dtype = view.format, dtype or self._dtype(view)
        if self.dtype not in _lib().dtypes:
            raise ValueError(f"cdp: dtype {self.dtype!r}; there are: {', '.join(_lib().dtypes)}")
        self.code = _lib().dtypes[self.dtype]
        self.count = view.nbytes // _call("cdp_dtype_size", self.code)
        block = C.c_char * view.nbytes
        self.block = block.from_buffer_copy(view) if view.readonly else block.from_buffer(view)
        self.address = C.addressof(self.block)

    @staticmethod
    def _dtype(view: memoryview) -> str:
        code = view.format.lstrip("@=" + ("<" if sys.byteorder == "little" else ">"))
        if code in ("f", "d", "e"):
            return f"f{8 * view.itemsize}"
        if code in ("Zf", "Zd"):
            return f"cf{4 * view.itemsize}"
        if code in ("b", "h", "i", "l", "q"):
            return f"i{8 * view.itemsize}"
        if code in ("B", "H", "I", "L", "Q", "c"):
            return f"u{8 * view.itemsize}"
        if code == "?":
            return "bool"
        raise TypeError(f"cdp: elements of format {view.format!r} have no dtype here; say dtype='bf16', for one,"
                        " and pass a view of an integer dtype")


def _view(address: int, like: _Memory, owner: Any) -> Any:
    """Memory of the library in the shape of `like`: an array of numpy, or a memoryview without it."""
    block: Any = (C.c_char * len(like.block)).from_address(address)
    block.owner = owner  # lives as long as the view
    try:
        import numpy
    except ImportError:
        view: Any = memoryview(block).cast("B")
        return view.cast(like.format.lstrip("@=<>"), like.shape)
    dtype = getattr(like.object, "dtype", None) or numpy.dtype(like.format)
    return numpy.frombuffer(block, dtype).reshape(like.shape)


def _pointer(keep: list, value: Any) -> Optional[int]:
    if isinstance(value, str):
        value = value.encode()
    keep.append(value)
    if isinstance(value, bytes):
        return C.cast(C.c_char_p(value), C.c_void_p).value
    if isinstance(value, (C.Structure, C.Array)):
        return C.addressof(value)
    return value if value is None or isinstance(value, int) else C.cast(value, C.c_void_p).value


def _struct(struct: str, /, **members: Any) -> Any:
    """A struct of C, zero but for `members`; keeps alive what they point to."""
    made = _lib().types[struct]()
    made._held = []
    kinds = dict(made._fields_)
    for member, value in members.items():
        inside = None if member in kinds else \
            next((m for m, t in made._fields_ if member in dict(getattr(t, "_fields_", ()))), None)
        if member not in kinds and not inside:
            raise TypeError(f"cdp: {struct} has no member {member!r}; it has: {', '.join(kinds)}")
        target = getattr(made, inside) if inside else made
        if member in ("dtype", "accumulate", "op") and isinstance(value, str):
            table = _lib().ops if member == "op" else _lib().dtypes
            if value not in table:
                raise ValueError(f"cdp: {member} {value!r}; there are: {', '.join(table)}")
            value = table[value]
        if dict(target._fields_)[member] is C.c_void_p:
            value = _pointer(made._held, value)
        setattr(target, member, value)
    return made


def _array(type_: Any, values: Sequence[Any]) -> Any:
    array = (type_ * max(len(values), 1))(*values)
    array._held = list(values)
    return array


class _Handle:
    """What the library made and this object owns."""
    _destroy = ""

    def __init__(self, pointer: int, keep: Any = None):
        self._p, self._keep = pointer, keep

    def close(self) -> None:
        """Give it back. A second call does nothing."""
        pointer, self._p = self._p, 0
        if pointer:
            _call(self._destroy, pointer)
            self._keep = None

    def _pointer_(self) -> int:
        if not self._p:
            raise WrongState(f"STATE: this {type(self).__name__} was closed")
        return self._p

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# ---- groups ----


def init(url: Optional[str] = None, **options: Any) -> Group:
    """Join the job; returns the group of all ranks. Without arguments from the variables that a
    launcher has set, else from `url` ("tcp://host:port?rank=0&world_size=2", "file:///path?..."), or
    from rank=, world_size=, master_port= and so on: options are members of cdp_tcp_desc and
    cdp_group_desc, such as timeout_ms, job_key, no_thread, alone_ok."""
    desc = _struct("cdp_tcp_desc", **options)
    if url is not None:
        return Group(_new("cdp_init_url", url, C.byref(desc)), desc)
    name = "cdp_init" if "world_size" in options else "cdp_init_from_env"
    return Group(_new(name, C.byref(desc)), desc)


class Work:
    """An operation in flight. Its arrays are the library's until it is done, and are kept alive."""

    def __init__(self, group: Group, work: Any, hold: Any, result: Any = None):
        self._group, self._work, self._hold, self._result = group, work, hold, result
        group._started(self)

    def wait(self, timeout_ms: Optional[int] = None) -> Any:
        """The result of the operation when it is done; with timeout_ms, None if it goes on after
        these. Ctrl-C interrupts the wait, not the operation."""
        left = timeout_ms
        while True:
            self._group._pointer_()
            part = 100 if left is None else min(left, 100)
            if _call("cdp_work_wait_for", self._work, part) == 0:
                return self._ended()
            if left is not None:
                left -= part
                if left <= 0:
                    return None

    def done(self) -> bool:
        self._group._pointer_()
        if _call("cdp_work_test", self._work) != 0:
            return False
        self._ended()
        return True

    def cancel(self) -> None:
        self._group._pointer_()
        _call("cdp_work_cancel", self._work)

    def _ended(self) -> Any:
        if self._hold is not None:
            self._group._works.discard(self)
            if callable(self._result):
                self._result = self._result()
            self._hold = None
        return self._result


class Message:
    """Where a message came from: source, tag, count."""

    def __init__(self, got: Any):
        self.source, self.tag, self.count = got.source, got.tag, got.count


class Group(_Handle):
    """Ranks that communicate, numbered from 0. Operations run in the order of the calls, the same on
    all ranks. Arrays have the buffer protocol and are contiguous; `out` receives, and where it is
    left out an operation works in place. Every operation takes async_op=True, and then returns a
    Work in place of its result; also dtype= (of elements that Python has no type for: "bf16"),
    timeout_ms=, and of cdp_request factor= and accumulate=."""
    _destroy = "cdp_group_destroy"

    def __init__(self, pointer: int, keep: Any = None):
        super().__init__(pointer, keep)
        self._works: set[Work] = set()
        self.rank: int = _call("cdp_rank", pointer)
        self.size: int = _call("cdp_size", pointer)

    def close(self) -> None:
        """Leave the group; see cdp_group_destroy. Arrays of operations in flight are free then."""
        super().close()
        self._works.clear()

    def _started(self, work: Work) -> None:
        self._works.add(work)
        if len(self._works) % 64 == 0:  # of those that nobody waited for
            for other in list(self._works):
                if _lib().functions["cdp_work_test"](other._work) == 0:
                    other._ended()

    def _run(self, work: Work, async_op: bool) -> Any:
        return work if async_op else work.wait()

    def _begin(self, start: str, arguments: Sequence[Any], hold: Any, result: Any, async_op: bool) -> Any:
        work = _lib().types["cdp_work"]()
        _call(start, self._pointer_(), *arguments, C.byref(work))
        return self._run(Work(self, work, hold, result), async_op)

    def _collective(self, kind: str, x: Any, out: Any, many: tuple[bool, bool] = (False, False),
                    in_counts: Optional[Sequence[int]] = None, out_counts: Optional[Sequence[int]] = None,
                    dtype: Optional[str] = None, async_op: bool = False, **members: Any) -> Any:
        """many: x and out have one part for each rank. The library would read and write `count`
        elements wherever it is told to, so all lengths are compared here."""
        source = None if x is None else _Memory(x, False, dtype)
        target = None if out is None else _Memory(out, True, dtype)
        if source and target and source.code != target.code:
            raise TypeError(f"cdp: {kind} from {source.dtype} to {target.dtype}")
        counts = (in_counts, out_counts) if kind == "alltoall" else (in_counts or out_counts,) * 2
        sides = [(m, self._part(kind, m, n, c)) for m, n, c in zip((source, target), many, counts) if m]
        if len({part for _, part in sides}) > 1:
            raise ValueError(f"cdp: {kind}: the parts of x and out have {sides[0][1]} and {sides[1][1]} elements")
        lists = [None if c is None else (C.c_uint64 * self.size)(*c) for c in (in_counts, out_counts)]
        request = _struct("cdp_request", kind=_lib().kinds[kind], in_counts=lists[0], out_counts=lists[1],
                          dtype=sides[0][0].code if sides else "u8", count=sides[0][1] if sides else 0,
                          out=target and target.address, **{"in": source and source.address}, **members)
        result = x if out is None else out
        return self._begin("cdp_start", [C.byref(request)], (source, target, request), result, async_op)

    def _part(self, kind: str, memory: _Memory, many: bool, counts: Optional[Sequence[int]]) -> int:
        """Elements of one part; 0 where the parts are uneven."""
        if counts is None:
            if many and memory.count % self.size:
                raise ValueError(f"cdp: {kind}: {memory.count} elements are not {self.size} equal parts")
            return memory.count // (self.size if many else 1)
        if len(counts) != self.size or min(counts) < 0:
            raise ValueError(f"cdp: {kind}: counts {list(counts)} for {self.size} ranks")
        need = sum(counts) if many else counts[self.rank]
        if memory.count != need:
            raise ValueError(f"cdp: {kind}: {memory.count} elements where the counts say {need}")
        return 0

    def allreduce(self, x: Any, out: Any = None, op: str = "sum", **more: Any) -> Any:
        """Every rank gets the reduction of all x: sum, avg, min, max, product, band, bor, bxor,
        premul_sum (of factor=). Returns `out`, or x."""
        return self._in_place("allreduce", x, out, op=op, **more)

    def reduce(self, x: Any, out: Any = None, op: str = "sum", root: int = 0, **more: Any) -> Any:
        """Root gets the reduction in `out`, or in x; other ranks need no `out`."""
        return self._in_place("reduce", x, out, op=op, root=root, **more)

    def scan(self, x: Any, out: Any = None, op: str = "sum", **more: Any) -> Any:
        """The reduction over the ranks up to this one."""
        return self._in_place("scan", x, out, op=op, **more)

    def exscan(self, x: Any, out: Any = None, op: str = "sum", **more: Any) -> Any:
        """The reduction over the ranks before this one; rank 0's `out` stays as it was."""
        return self._in_place("exscan", x, out, op=op, **more)

    def _in_place(self, kind: str, x: Any, out: Any, **more: Any) -> Any:
        return self._collective(kind, *((None, x) if out is None else (x, out)), **more)

    def broadcast(self, x: Any, root: int = 0, **more: Any) -> Any:
        """Copies root's x to all ranks."""
        return self._collective("broadcast", None, x, root=root, **more)

    def allgather(self, x: Any, out: Any, out_counts: Optional[Sequence[int]] = None, **more: Any) -> Any:
        """Every rank gets the parts of all in `out`, one after the other; out_counts: uneven ones. With
        x None this rank's part is in its place in `out`."""
        return self._collective("allgather", x, out, (False, True), out_counts=out_counts, **more)

    def gather(self, x: Any, out: Any = None, root: int = 0, out_counts: Optional[Sequence[int]] = None,
               **more: Any) -> Any:
        """As allgather, for root alone; `out` of other ranks is not used."""
        if self.rank == root and out is None:
            raise ValueError("cdp: gather: root needs `out`")
        out = out if self.rank == root else None
        return self._collective("gather", x, out, (False, True), out_counts=out_counts, root=root, **more)

    def scatter(self, x: Any, out: Any, root: int = 0, in_counts: Optional[Sequence[int]] = None,
                **more: Any) -> Any:
        """Root's x has a part for each rank, which gets it in `out`; x of other ranks is not used."""
        if self.rank == root and x is None:
            raise ValueError("cdp: scatter: root needs x")
        x = x if self.rank == root else None
        return self._collective("scatter", x, out, (True, False), in_counts=in_counts, root=root, **more)

    def reduce_scatter(self, x: Any, out: Any, op: str = "sum", in_counts: Optional[Sequence[int]] = None,
                       **more: Any) -> Any:
        """x has a part for each rank, which gets the reduction of it in `out`."""
        return self._collective("reduce_scatter", x, out, (True, False), in_counts=in_counts, op=op, **more)

    def alltoall(self, x: Any, out: Any, in_counts: Optional[Sequence[int]] = None,
                 out_counts: Optional[Sequence[int]] = None, **more: Any) -> Any:
        """Part r of x goes to rank r; part r of `out` comes from it. Both counts, or neither."""
        if (in_counts is None) != (out_counts is None):
            raise ValueError("cdp: alltoall takes both counts, or neither")
        return self._collective("alltoall", x, out, (True, True), in_counts, out_counts, **more)

    def barrier(self, **more: Any) -> Any:
        """Returns when every rank has called it."""
        return self._collective("barrier", None, None, **more)

    def send(self, x: Any, to: int, tag: int = 0, dtype: Optional[str] = None, async_op: bool = False) -> Any:
        """Sends x to a rank, where recv() takes it, in the order of the calls for each tag."""
        m = _Memory(x, False, dtype)
        return self._begin("cdp_send_async", [m.address, m.count, m.code, to, tag], m, None, async_op)

    def recv(self, x: Any, source: int, tag: int = 0, dtype: Optional[str] = None, async_op: bool = False) -> Any:
        """Receives as many elements as x has; returns x."""
        m = _Memory(x, True, dtype)
        return self._begin("cdp_recv_async", [m.address, m.count, m.code, source, tag], m, x, async_op)

    def recv_any(self, x: Any, source: Optional[int] = None, tag: int = 0, dtype: Optional[str] = None,
                 async_op: bool = False) -> Any:
        """Receives at most as many elements as x has, from any rank or from `source`; returns a
        Message, whose count says how many came."""
        m, got = _Memory(x, True, dtype), _lib().types["cdp_message"]()
        where = _lib().constants["CDP_ANY_RANK"] if source is None else source
        return self._begin("cdp_recv_any_async", [m.address, m.count, m.code, where, tag, C.byref(got)],
                           (m, got), lambda: Message(got), async_op)

    def sendrecv(self, x: Any, to: int, out: Any, source: int, tag: int = 0, dtype: Optional[str] = None) -> Any:
        """Sends x to `to` and receives `out` from `source`, at the same time."""
        work = self.recv(out, source, tag, dtype, async_op=True)
        self.send(x, to, tag, dtype)
        return work.wait()

    def probe(self, source: Optional[int] = None, tag: int = 0) -> Optional[Message]:
        """The message that a receive would take now, or None."""
        got = _lib().types["cdp_message"]()
        where = _lib().constants["CDP_ANY_RANK"] if source is None else source
        return Message(got) if _call("cdp_probe", self._pointer_(), where, tag, C.byref(got)) == 0 else None

    def monitored_barrier(self, timeout_ms: int = 0) -> None:
        """A barrier whose Timeout names all ranks that are missing."""
        _call("cdp_monitored_barrier", self._pointer_(), timeout_ms)

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, of any lengths; of objects with pickle.dumps and loads."""
        return self._bytes("cdp_allgather_bytes", data, len(data))

    def gather_bytes(self, data: bytes, root: int = 0) -> Optional[list[bytes]]:
        """As allgather_bytes, for root alone; None elsewhere."""
        got = self._bytes("cdp_gather_bytes", data, len(data), root)
        return got if self.rank == root else None

    def broadcast_bytes(self, data: Optional[bytes] = None, root: int = 0) -> bytes:
        """Root's bytes, on all ranks."""
        if self.rank == root:
            data = data or b""
            _call("cdp_broadcast_bytes", self._pointer_(), data, len(data), root, None)
            return data
        return b"".join(self._bytes("cdp_broadcast_bytes", None, 0, root, whole=True))

    def scatter_bytes(self, parts: Optional[Sequence[bytes]] = None, root: int = 0) -> bytes:
        """Rank r gets parts[r] of root."""
        if self.rank == root and (parts is None or len(parts) != self.size):
            raise ValueError(f"cdp: scatter_bytes needs {self.size} parts")
        parts = parts if self.rank == root and parts else []
        lengths = (C.c_uint64 * self.size)(*map(len, parts))
        return b"".join(self._bytes("cdp_scatter_bytes", b"".join(parts), lengths, root, whole=True))

    def _bytes(self, name: str, *arguments: Any, whole: bool = False) -> list[bytes]:
        lengths = (C.c_uint64 * self.size)()
        blob = _struct("cdp_blob", **({} if whole else {"lengths": lengths}))
        _call(name, self._pointer_(), *arguments, C.byref(blob))
        data = C.string_at(blob.data, blob.bytes) if blob.bytes else b""
        _call("cdp_blob_free", self._pointer_(), C.byref(blob))
        if whole:
            return [data]
        at = [sum(lengths[:i]) for i in range(self.size + 1)]
        return [data[a:b] for a, b in zip(at, at[1:])]

    def new(self, ranks: Sequence[int]) -> Group:
        """A group of these ranks, which alone call it."""
        return Group(_new("cdp_group_new", self._pointer_(), (C.c_uint32 * len(ranks))(*ranks), len(ranks)),
                     self._keep)

    def split(self, color: Optional[int], key: int = 0) -> Optional[Group]:
        """Ranks of one colour get a group, in the order of their keys; None: this rank gets none."""
        made = _new("cdp_group_split", self._pointer_(),
                    _lib().constants["CDP_NO_COLOR"] if color is None else color, key)
        return Group(made, self._keep) if made else None

    def status(self) -> None:
        """Raises the group's failure, if it has failed."""
        _call("cdp_group_status", self._pointer_())

    def abort(self, reason: str) -> None:
        """Breaks the group on all ranks."""
        _call("cdp_group_abort", self._pointer_(), reason)

    def poll(self, budget_us: int = 0) -> None:
        """Lets communication advance, with no_thread."""
        _call("cdp_poll", self._pointer_(), budget_us)

    def describe(self) -> str:
        """Settings, algorithms and links, for a reader."""
        text = C.create_string_buffer(_call("cdp_describe", self._pointer_(), None, 0) + 4096)
        _call("cdp_describe", self._pointer_(), text, len(text))
        return text.value.decode()

    def dump(self, path: str) -> None:
        """Writes the state of this rank for tools/who_is_stuck."""
        _call("cdp_group_dump", self._pointer_(), path)


# ---- data parallel training ----


class DDP(_Handle):
    """Averages gradients of `params` (name: array; or a list) over all ranks while the backward pass
    runs. Gradients are in the buckets: grad(name) is a view, not to be used after close(). Options are
    members of cdp_ddp_desc: bucket_bytes, find_unused, static_graph, join, accumulate, ...; of one
    parameter: param_options={name: {"uses": 2}}, members of cdp_param."""
    _destroy = "cdp_ddp_destroy"

    def __init__(self, group: Group, params: Union[Mapping[str, Any], Sequence[Any]],
                 buffers: Optional[Mapping[str, Any]] = None,
                 param_options: Optional[Mapping[str, Mapping[str, Any]]] = None, **options: Any):
        if not isinstance(params, Mapping):
            params = {f"param{i}": p for i, p in enumerate(params)}
        self.params, self._index = dict(params), {name: i for i, name in enumerate(params)}
        dtypes = {n: dict((param_options or {}).get(n, {})).get("dtype") for n in params}
        self._memory = [_Memory(p, True, dtypes[n]) for n, p in params.items()]
        list_ = [_struct("cdp_param", **{"name": n, "data": m.address, "count": m.count, "dtype": m.code,
                                         "rows": m.shape[0] if len(m.shape) > 1 and m.count else 0,
                                         **(param_options or {}).get(n, {})})
                 for n, m in zip(params, self._memory)]
        held = {n: _Memory(b, True) for n, b in (buffers or {}).items()}
        others = [_struct("cdp_buffer", name=n, data=m.address, count=m.count, dtype=m.code)
                  for n, m in held.items()]
        types = _lib().types
        desc = _struct("cdp_ddp_desc", group=group._pointer_(), params=_array(types["cdp_param"], list_),
                       param_count=len(list_), buffers=_array(types["cdp_buffer"], others),
                       buffer_count=len(others), **options)
        super().__init__(_new("cdp_ddp_create", C.byref(desc)), (desc, group, held))

    def _number(self, which: Union[str, int]) -> int:
        if isinstance(which, str):
            return self._index[which]
        return range(len(self._memory))[which]

    def grad(self, which: Union[str, int]) -> Any:
        """The gradient of a parameter: write it before ready(), read the mean after backward()."""
        i = self._number(which)
        address = _call("cdp_ddp_grad", self._pointer_(), i)
        if not address and self._memory[i].count:
            raise Invalid(f"INVALID: parameter {which!r} has no dense gradient")
        return _view(address or self._memory[i].address, self._memory[i], self)

    @contextlib.contextmanager
    def backward(self) -> Iterator[DDP]:
        """with ddp.backward(): compute gradients, and call ready() as each is complete."""
        _call("cdp_ddp_backward_begin", self._pointer_())
        yield self
        _call("cdp_ddp_backward_end", self._pointer_())

    def ready(self, which: Union[str, int]) -> None:
        """The gradient is complete; a bucket whose parameters are all ready leaves at once."""
        _call("cdp_ddp_ready", self._pointer_(), self._number(which))

    def unused(self, which: Union[str, int]) -> None:
        """No gradient in this pass (find_unused, static_graph)."""
        _call("cdp_ddp_unused", self._pointer_(), self._number(which))

    def used(self, which: Union[str, int]) -> bool:
        """Did any rank have a gradient for it in the last pass?"""
        return _call("cdp_ddp_used", self._pointer_(), self._number(which))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside accumulate locally."""
        before = _call("cdp_ddp_is_no_sync", self._pointer_())
        _call("cdp_ddp_no_sync", self._pointer_(), True)
        yield
        _call("cdp_ddp_no_sync", self._pointer_(), before)

    def forward_begin(self) -> None:
        """Copies buffers before a forward pass."""
        _call("cdp_ddp_forward_begin", self._pointer_())

    def zero_grad(self) -> None:
        _call("cdp_ddp_zero_grad", self._pointer_())

    def join(self) -> None:
        """This rank has no more data (join=True)."""
        _call("cdp_ddp_join", self._pointer_())

    def verify(self) -> None:
        """Mismatch if parameters differ between ranks."""
        _call("cdp_ddp_verify", self._pointer_())

    def clip(self, max_norm: float) -> float:
        """Scales gradients to a norm of at most max_norm; returns the norm before."""
        norm = C.c_double()
        _call("cdp_ddp_clip", self._pointer_(), max_norm, C.byref(norm))
        return norm.value

    def rebind(self, group: Group) -> None:
        """Goes on with another group."""
        _call("cdp_ddp_rebind", self._pointer_(), group._pointer_())
        self._keep = (*self._keep, group)

    def stats(self) -> dict[str, Any]:
        """cdp_ddp_stats by name."""
        return _members(_call("cdp_ddp_stats_of", self._pointer_()))


def _members(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name, _ in struct._fields_}


# ---- stores ----


class StoreServer(_Handle):
    """Serves a store over TCP. Options are members of cdp_store_server_desc."""
    _destroy = "cdp_store_server_destroy"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, **options: Any):
        desc = _struct("cdp_store_server_desc", host=host, port=port, **options)
        super().__init__(_new("cdp_store_server_create", C.byref(desc)), desc)
        self.port: int = _call("cdp_store_server_port", self._p)


class Store(_Handle):
    """Keys and bytes that all ranks see. timeout_ms 0 is the store's own."""
    _destroy = "cdp_store_destroy"

    @staticmethod
    def in_process() -> Store:
        return Store(_new("cdp_hash_store_create", None))

    @staticmethod
    def file(path: str, **options: Any) -> Store:
        """In a file, as torch.distributed.FileStore; options: members of cdp_file_store_desc."""
        desc = _struct("cdp_file_store_desc", path=path, **options)
        return Store(_new("cdp_file_store_create", C.byref(desc)), desc)

    @staticmethod
    def tcp(host: str, port: int, **options: Any) -> Store:
        """Of a StoreServer, or PyTorch's TCPStore; options: members of cdp_tcp_store_desc."""
        desc = _struct("cdp_tcp_store_desc", host=host, port=port, **options)
        return Store(_new("cdp_tcp_store_create", C.byref(desc)), desc)

    def prefix(self, prefix: str) -> Store:
        """The keys that begin with PREFIX/."""
        return Store(_new("cdp_prefix_store_create", self._pointer_(), prefix), self)

    def set(self, key: str, value: bytes) -> None:
        _call("cdp_store_set", self._pointer_(), key, value, len(value))

    def get(self, key: str, timeout_ms: int = 0) -> bytes:
        """Waits for the key."""
        return self._value("cdp_store_get", [key], [timeout_ms])

    def add(self, key: str, delta: int = 1) -> int:
        return self._number("cdp_store_add", key, delta)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Stores `desired` where `expected` is, or is empty and the key absent; returns what is there."""
        return self._value("cdp_store_compare_set", [key, expected, len(expected), desired, len(desired)], [])

    def append(self, key: str, value: bytes) -> None:
        _call("cdp_store_append", self._pointer_(), key, value, len(value))

    def wait(self, keys: Sequence[str], timeout_ms: int = 0) -> None:
        _call("cdp_store_wait", self._pointer_(), self._keys(keys), len(keys), timeout_ms)

    def check(self, keys: Sequence[str]) -> bool:
        """Are they all there?"""
        there = C.c_bool()
        _call("cdp_store_check", self._pointer_(), self._keys(keys), len(keys), C.byref(there))
        return there.value

    def delete(self, key: str) -> bool:
        """Was it there?"""
        there = C.c_bool()
        _call("cdp_store_delete", self._pointer_(), key, C.byref(there))
        return there.value

    def num_keys(self) -> int:
        return self._number("cdp_store_num_keys")

    def list_keys(self) -> list[str]:
        keys, count = C.c_void_p(), C.c_uint64()
        _call("cdp_store_list_keys", self._pointer_(), C.byref(keys), C.byref(count))
        list_ = (_lib().types["cdp_bytes"] * count.value).from_address(keys.value) if count.value else ()
        found = [C.string_at(k.data, k.bytes).decode() for k in list_]
        _call("cdp_store_free", self._pointer_(), keys)
        return found

    def barrier(self, key: str, count: int, timeout_ms: int = 0) -> None:
        _call("cdp_store_barrier", self._pointer_(), key, count, timeout_ms)

    def push(self, queue: str, value: bytes) -> None:
        _call("cdp_store_queue_push", self._pointer_(), queue, value, len(value))

    def pop(self, queue: str, timeout_ms: int = 0) -> bytes:
        """Waits for a value of the queue, and takes it."""
        return self._value("cdp_store_queue_pop", [queue], [timeout_ms])

    @staticmethod
    def _keys(keys: Sequence[str]) -> Any:
        return (C.c_char_p * len(keys))(*(k.encode() for k in keys))

    def _number(self, name: str, *arguments: Any) -> int:
        number = C.c_int64()
        _call(name, self._pointer_(), *arguments, C.byref(number))
        return number.value

    def _value(self, name: str, before: Sequence[Any], after: Sequence[Any]) -> bytes:
        value, count = C.c_void_p(), C.c_uint64()
        _call(name, self._pointer_(), *before, C.byref(value), C.byref(count), *after)
        data = C.string_at(value.value, count.value) if value.value else b""
        _call("cdp_store_free", self._pointer_(), value)
        return data


# ---- remote calls of bytes ----


Function = Callable[[bytes, int], Optional[bytes]]


class Call:
    """A remote call under way."""

    def __init__(self, rpc: Rpc, call: Any):
        self._rpc, self._call = rpc, call
        self._data: Optional[bytes] = None

    def wait(self) -> bytes:
        """The bytes that the function returned, or its failure."""
        while self._data is None:
            self._rpc._pointer_()
            if _call("cdp_call_wait_for", C.byref(self._call), 100) == 0:
                self._data = C.string_at(self._call.data, self._call.bytes) if self._call.bytes else b""
                _call("cdp_call_free", C.byref(self._call))
                self._rpc._calls.discard(self)
        return self._data


class Rpc(_Handle):
    """Calls functions of other ranks and serves its own: name: function(bytes, rank that calls), which
    returns bytes or None. They run in threads of the library, one at a time of those in Python; an
    exception is Remote for the caller. Collective. Options are members of cdp_rpc_desc."""
    _destroy = "cdp_rpc_destroy"

    def __init__(self, group: Group, functions: Optional[Mapping[str, Function]] = None, **options: Any):
        list_ = [_struct("cdp_rpc_function", name=n, func=self._served(f)) for n, f in (functions or {}).items()]
        desc = _struct("cdp_rpc_desc", group=group._pointer_(), function_count=len(list_),
                       functions=_array(_lib().types["cdp_rpc_function"], list_), **options)
        self._calls: set[Call] = set()
        super().__init__(_new("cdp_rpc_create", C.byref(desc)), (desc, group))
        atexit.register(self.close)  # no function of Python is called when the interpreter has ended

    @staticmethod
    def _served(function: Function) -> Any:
        def run(_user: int, pointer: int) -> None:
            try:
                request = _lib().types["cdp_rpc_request"].from_address(pointer)
                data = C.string_at(request.data, request.bytes) if request.bytes else b""
                result = function(data, getattr(request, "from")) or b""
                iov = _struct("cdp_iov", data=bytes(result), bytes=len(result))
                _call("cdp_rpc_reply", pointer, C.byref(_struct("cdp_args", iov=iov, iov_count=1)))
            except BaseException as e:
                _lib().functions["cdp_rpc_fail"](pointer, 1, f"{type(e).__name__}: {e}".encode()[:400])
        return C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)(run)

    def start(self, to: int, function: str, data: bytes = b"", timeout_ms: int = 0, **options: Any) -> Call:
        """Starts a call; options are members of cdp_call_desc."""
        iov = _struct("cdp_iov", data=bytes(data), bytes=len(data))
        desc = _struct("cdp_call_desc", to=to, function=_call("cdp_rpc_id", function), timeout_ms=timeout_ms,
                       **options)
        desc.args.iov, desc.args.iov_count = C.addressof(iov), 1
        call = Call(self, _lib().types["cdp_call"]())
        _call("cdp_rpc_start", self._pointer_(), C.byref(desc), C.byref(call._call))
        self._calls.add(call)
        return call

    def call(self, to: int, function: str, data: bytes = b"", timeout_ms: int = 0, **options: Any) -> bytes:
        """Calls a function of rank `to` and returns what it returned."""
        return self.start(to, function, data, timeout_ms, **options).wait()

    def serve(self, timeout_ms: int) -> bool:
        """Runs functions in this thread (no_workers); False: the time is over."""
        return _call("cdp_rpc_serve", self._pointer_(), timeout_ms) == 0

    def shutdown(self, timeout_ms: int = 0) -> None:
        """Collective: serves until no rank has a call under way, then ends."""
        _call("cdp_rpc_shutdown", self._pointer_(), timeout_ms)

    def close(self) -> None:
        super().close()
        self._calls.clear()
        atexit.unregister(self.close)


# ---- checkpoints ----


class Checkpoint(_Handle):
    """Saves and loads `items` (name: array, equal on all ranks) as safetensors in the folder `path`.
    rank_items are bytearrays of each rank's own, such as its random state. Options are members of
    cdp_ckpt_desc: keep, keep_every, incremental, partial, cast (arrays keep their dtype, and load() rounds
    elements of another one once), ..."""
    _destroy = "cdp_ckpt_destroy"

    def __init__(self, group: Group, path: str, items: Mapping[str, Any],
                 rank_items: Optional[Mapping[str, bytearray]] = None, **options: Any):
        held = {n: _Memory(x, True) for n, x in items.items()}
        own = {n: _Memory(x, True) for n, x in (rank_items or {}).items()}
        list_ = [self._item(n, m) for n, m in held.items()]
        blobs = [_struct("cdp_ckpt_blob", name=n, data=m.address, bytes=m.count, room=m.count, per_rank=True)
                 for n, m in own.items()]
        types = _lib().types
        desc = _struct("cdp_ckpt_desc", group=group._pointer_(), path=path, item_count=len(list_),
                       items=_array(types["cdp_item"], list_), blob_count=len(blobs),
                       blobs=_array(types["cdp_ckpt_blob"], blobs), **options)
        super().__init__(_new("cdp_ckpt_create", C.byref(desc)), (desc, group, held, own))

    @staticmethod
    def _item(name: str, memory: _Memory) -> Any:
        item = _struct("cdp_item", name=name)
        layout = item.tensor.layout
        if len(memory.shape) > len(layout.shape):
            raise ValueError(f"cdp: {name} has {len(memory.shape)} dimensions, at most {len(layout.shape)}")
        layout.ndim, layout.dtype, item.tensor.data = len(memory.shape), memory.code, memory.address
        for i, n in enumerate(memory.shape):
            layout.shape[i] = n
        return item

    def save(self, step: int) -> None:
        """Collective: when it returns, the step survives crashes."""
        _call("cdp_ckpt_save", self._pointer_(), step)

    def load(self, step: Optional[int] = None, path: Optional[str] = None) -> Optional[int]:
        """Collective: loads a step (None: the newest) into the arrays and returns its number; None if
        there is no step to go on from."""
        found = C.c_uint64()
        newest = _lib().constants["CDP_CKPT_LATEST"]
        try:
            _call("cdp_ckpt_load", self._pointer_(), path, newest if step is None else step, C.byref(found))
        except WrongState:
            if step is None and self._p:
                return None
            raise
        return found.value

    def info(self) -> dict[str, int]:
        """What the last save or load did: cdp_ckpt_info by name."""
        return _members(_call("cdp_ckpt_info_of", self._pointer_()))


def _entries(reader: Any) -> Iterator[tuple[int, Any]]:
    for i in range(_call("cdp_ckpt_count", reader)):
        yield i, _call("cdp_ckpt_entry_at", reader, i)


def list_checkpoint(path: str) -> dict[str, dict[str, Any]]:
    """What is in a checkpoint, or in files of safetensors or of torch.distributed.checkpoint, by name:
    dtype, shape, bytes, file, blob (bytes of the program, or what is no tensor), and layout: how it was
    cut when it was saved, such as "S0 on 4" (None: on no mesh, or files do not say). Without a group."""
    reader = _new("cdp_ckpt_open", path, None)
    try:
        return {C.string_at(e.name).decode(): {
            "dtype": _call("cdp_dtype_name", e.dtype).decode(), "shape": tuple(e.shape[:e.ndim]), "bytes": e.bytes,
            "file": C.string_at(e.file).decode(), "blob": e.blob,
            "layout": C.string_at(e.layout).decode() if e.layout else None} for _, e in _entries(reader)}
    finally:
        _call("cdp_ckpt_close", reader)


def read_checkpoint(path: str) -> dict[str, Any]:
    """The tensors of a checkpoint, or of files of safetensors, as arrays of numpy; without a group."""
    import numpy
    reader, arrays = _new("cdp_ckpt_open", path, None), {}
    try:
        for i, entry in _entries(reader):
            dtype = _call("cdp_dtype_name", entry.dtype).decode()
            size = _call("cdp_dtype_size", entry.dtype)
            kind = "u" if dtype[:2] in ("bf", "f8") else dtype[0]  # bits of floats that numpy does not have
            array = numpy.empty(list(entry.shape[:entry.ndim]), "?" if kind == "b" else f"{kind}{size}")
            _call("cdp_ckpt_read", reader, i, None, array.ctypes.data)
            arrays[C.string_at(entry.name).decode()] = array
    finally:
        _call("cdp_ckpt_close", reader)
    return arrays


def version() -> str:
    """Which library this is and how it was compiled."""
    return _call("cdp_build").decode()


# ---- python3 -m cdp ----


def run(arguments: Sequence[str]) -> None:
    """Becomes cdprun with these arguments; children find this file."""
    _lib()  # once, before the ranks
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.execv(_found("cdprun", "CDPRUN", build_cdprun), ["cdprun", *arguments])


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["run"]:
        run(arguments[1:])
    if arguments[:1] == ["build"]:
        print(build(*arguments[1:2]))
    elif arguments == ["version"]:
        print(version())
    else:
        print("python3 -m cdp run ARGUMENTS OF cdprun | build [FILE] | version")
        return 0 if arguments in (["--help"], ["-h"]) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
