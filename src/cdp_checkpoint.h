/*  cdp_checkpoint.h - saved from any layout, loaded into any other - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        Checkpoints of a distributed job as files that other programs read: safetensors, each tensor
        once and whole. All ranks write at the same time, each its own part. A job of another number
        of ranks, with tensors that are cut in another way, loads them; so does one process without
        a group, and a program in Python. A step that cdp_ckpt_save() has reported survives crashes
        and power cuts, whatever happens during later saves. Loading compares every byte with a sum.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_tcp.h"            or another way to connect ranks, and
        #include "cdp_checkpoint.h"     which needs cdp.h and cdp_dtensor.h

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_tcp.h"
        #include "cdp_checkpoint.h"
        #include <stdio.h>
        int main(void) {
            static float w[6 * 8];
            cdp_group *world;
            cdp_ckpt *ckpt;
            uint64_t step = 0;
            cdp_item item = { .name = "w" };                  // every rank has all of it, as in DDP
            item.tensor.layout.ndim = 2;
            item.tensor.layout.shape[0] = 6;
            item.tensor.layout.shape[1] = 8;
            item.tensor.data = w;
            if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
            cdp_ckpt_desc desc = { .group = world, .path = "run7", .items = &item, .item_count = 1,
                .keep = 3 };
            if (cdp_ckpt_create(&desc, &ckpt) != CDP_OK) return cdp_print_error(stderr);
            cdp_status st = cdp_ckpt_load(ckpt, NULL, CDP_CKPT_LATEST, &step);
            if (st != CDP_OK && st != CDP_ERR_STATE) return cdp_print_error(stderr);
            printf("%s %u\n", st == CDP_OK ? "goes on at step" : "begins at step", (unsigned)step);
            for (uint64_t end = step + 10; step < end; ++step) w[0] += 1;      // train
            if (cdp_ckpt_save(ckpt, step) != CDP_OK) return cdp_print_error(stderr);
            cdp_ckpt_destroy(ckpt);
            cdp_group_destroy(world);
            return 0;
        }
        gcc -O2 train.c -o train -pthread -lm        cdprun -n 4 ./train; cdprun -n 3 ./train

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_checkpoint.h. A part
        uses what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        say what belongs to a checkpoint                   cdp_ckpt_create
        save a step                                        cdp_ckpt_save
        go on training while files are written             cdp_ckpt_save_async, cdp_ckpt_wait
        without a copy, if writing is fast enough          desc.late, cdp_ckpt_staged
        go on from the newest step                         cdp_ckpt_load, CDP_CKPT_LATEST
        load files of Hugging Face, or one of them         cdp_ckpt_load with `path`
        load what torch.distributed.checkpoint has saved   the same: its folder with .metadata
        load f32 into bf16, or the other way round         desc.cast
        write only files that have changed                 desc.incremental
        save where folders cannot be renamed               desc.no_rename
        know what a rank would write, without ranks        cdp_ckpt_preview, a mesh on paper
        and how long the disk needs for it                 desc.disk_bytes_per_us, predicted_us
        see what the last call did                         cdp_ckpt_info_of
        read tensors or parts of them without a group      cdp_ckpt_open, cdp_ckpt_read
        compare files with their sums                      cdp_ckpt_verify
        find the newest step                               cdp_ckpt_newest
        In a shell: tools/checkpoint lists, verifies, compares, merges, converts (into files for
        torch.load(), too), draws.

    WHAT A RANK BRINGS
        An array that all ranks have as a copy, as in cdp_ddp: an item without a mesh. Ranks write
        equal parts of it.
        A tensor that is cut: an item with its cdp_dtensor. Copies along a dimension of the mesh are
        written once, in equal parts. The mesh must have all ranks that hold a part or a copy: with
        a mesh of cdp_mesh_sub(), copies in other parts are not known, and the save is refused.
        Whole rows of one array in pieces of any size: a layout with a cut of cdp_mesh_cut() or
        cdp_layout_from_local(). Elements that are no whole rows: a view in one dimension with such
        a cut, and the real shape in cdp_item.shape.
        A part of an array, and other ranks the rest, as in cdp_fsdp: an item with .part, .first and
        .count, from each cdp_fsdp_piece; after loading, cdp_fsdp_loaded(). So a model goes from one
        number of ranks to another, also where a pipeline has a parameter on some ranks alone:
        examples/22_checkpoint.c.
        State of an optimizer: more items, such as "w.exp_avg", with .file = "optimizer".
        Anything else: a blob, of rank 0 or of each rank.
        All ranks list the same items and blobs in one order.

    FILES
        PATH/step-00000123/model-00001-of-00002.safetensors, ...; optimizer-00001-of-..., as
            cdp_item.file says; model.safetensors.index.json: which tensor is where
        PATH/step-00000123/blobs.safetensors: blobs as U8 "NAME", or "NAME.rank00003"
        PATH/step-00000123/checkpoint.json: step, files, tensors and blobs with their offsets, the
            layouts that were saved (for people: cdp_ckpt_entry.layout), and sums. A step without
            it does not exist.
        PATH/latest: the name of the newest step, for people; loading looks at the folders.
        PATH/lock: locked while a job saves, so that a second one is refused (BUSY).
        Elements of 8 bytes come first in a file, then those of 4, 2 and 1, so all are aligned; the
        data of a file begin at a multiple of 4096.

    FILES OF PYTORCH
        torch.distributed.checkpoint.HuggingFaceStorageReader loads ours; `checkpoint convert PATH
        FILE.pt` makes a file that torch.load(weights_only=True) reads. A folder that dcp.save()
        has written (.metadata and .distcp) is loaded here as ours are: into any layout, by any
        number of ranks, by tools/checkpoint, too, which merges it into one file of safetensors. A
        tensor has the name that it has there, such as "state.a.exp_avg". What is no tensor is a
        blob: the bytes of an archive of torch.save(). Pickles are read as values: no name in them
        is looked up, and nothing is called. There are no sums, so nothing is verified. Refused
        (UNSUPPORTED): tensors with other strides than those of their shape, compressed archives,
        transforms, and dtypes that are not known here.

    WHY NOTHING IS LOST
        A save writes into step-N.tmp-ID. All ranks sync their files; then rank 0 writes and syncs
        checkpoint.json, syncs the folder, renames it to step-N, and syncs PATH. Only then does the
        call return CDP_OK, and only then are older steps removed: each is renamed to
        step-N.tmp-swept, and PATH is synced, before its files go. A folder that somebody put there
        stays, and fails no save. Existing steps are never changed. The next save removes folders
        that were not finished. `latest` is not synced. Tests cut the power at each of these calls
        in a model of a file system that loses and reorders what was not synced.

        With desc.no_rename no folder is renamed: files are written under their final names and
        synced, then their names, then checkpoint.json, then its name and that of the folder. The
        promise is the same. A step that is removed loses checkpoint.json first. What is cut or
        damaged there counts as not finished, so a save of this step begins anew.

    IN THE BACKGROUND
        for (; step < end; ++step) {
            forward_and_backward();
            if (cdp_ckpt_staged(ckpt) != CDP_OK) break;         // with desc.late
            optimizer_step();
            if (step % 100 == 0 && cdp_ckpt_save_async(ckpt, step) != CDP_OK) break;
        }
        if (cdp_ckpt_wait(ckpt, CDP_NO_TIMEOUT) != CDP_OK) ...
        cdp_ckpt_save_async() copies what this rank writes, at most once, and returns; a thread
        writes, over a group of its own. With `late` it copies nothing: the thread writes from the
        memory of the program during forward and backward, and cdp_ckpt_staged(), before the
        optimizer changes that memory, copies what is left. A program that forgets this call saves
        a mixture of two steps. One save at a time: the next one is refused (BUSY) until
        cdp_ckpt_wait() has returned something else than PENDING. How it ended is the same on all
        ranks, and is the result of cdp_ckpt_wait() or of the next collective call. Without threads
        (no_thread of the group, or an os without them) cdp_ckpt_wait(ckpt, 0) in each frame writes
        at most 8 MiB.

    WHAT HAS NOT CHANGED
        With desc.incremental a file whose tensors all have the sums that they have in the newest
        step is not written: it gets a second name (a hard link), or is copied by rank 0 where links
        fail. Both steps are whole: removing the older one takes nothing from the newer one, and
        each verifies alone. Files of one save hold up to file_bytes, and one changed tensor makes
        its whole file new: put what is frozen into files of its own with cdp_item.file. Blobs are
        always written. What this costs: the call reads all that the rank would write, also with
        `late`; a file that has changed in more than one element passes for unchanged with a chance
        of about 2^-32; and damage on disk is that of all steps that share the file. A save without
        it now and then writes all anew.

    SUMS
        Each 4 MiB of a tensor have a sum that is linear in the elements, so parts add up however
        the tensor is cut, and loading reads nothing twice. One changed element of up to 4 bytes
        always shows; other damage escapes with a chance of about 2^-32. They do not protect from
        somebody who changes files on purpose.

    CONFIGURATION
        CDP_CHECKPOINT_IMPLEMENTATION implements this header, cdp_dtensor.h and cdp.h, whose private
        parts it uses, in the same file; no other file must implement these then. The macros of
        cdp.h hold here, too: CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO. With CDP_NO_FILES
        or CDP_NO_OS bring your own cdp_os.files.

    THREADS
        A cdp_ckpt belongs to one thread at a time. Saving and loading are collective over the
        group and in the order of its other operations. They last as long as the slowest rank's
        disk: the timeout of the group must be longer, also for what is written in the background.
        There, cdp_os.files and desc.progress are called by the thread that writes.

    MEMORY
        From the os of the group. cdp_ckpt_save() copies no tensor; copies of cdp_ckpt_save_async()
        take at most what this rank writes, or desc.stage_bytes, and that memory is kept for the
        next one until cdp_ckpt_destroy(); without threads it is taken in the call, with `late`,
        too, so that a rank that has none is named to all. A save needs about 550 bytes for each
        item, 8 bytes for each 4 MiB of all tensors, and on rank 0 the headers and all blobs;
        loading three times the 8 bytes, and 1 MiB where runs are short.

    JOBS WHOSE RANKS CHANGE
        With cdp_elastic.h the ranks that live hand the state to newcomers. Files are for the case
        that nobody has it any more. Before cdp_elastic_create() each process reads the newest step
        without a group (cdp_ckpt_open, cdp_ckpt_verify, cdp_ckpt_read) and passes its number as
        cdp_elastic_desc.step. A cdp_ckpt belongs to one epoch: destroy it when now.changed is set.
        All ranks save at the same now.step, whether or not they remember an earlier save of it;
        INVALID may mean that it was saved just before an epoch ended. examples/
        29_elastic_checkpoint.c does all of this.

    ERRORS
        All ranks return the same status and text, which names the rank that failed. After an error
        of the disk or a wrong item the group stays usable. IO: errno says why; EBADMSG: damage.

    LIMITS
        names 511 bytes | path 512 bytes | header of a file 100 MB | 2^30 items | step below 2^58
        not here yet, and not promised: files of each rank alone, where no path is shared; reading
        PyTorch's .pt, and writing .distcp; object stores in which ranks cannot write parts of one
        file; complex dtypes, which safetensors does not have; runs of columns shorter than 64 KiB
        are written one by one, which is slow: cut rows, or redistribute first; big-endian machines

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */
#ifdef CDP_CHECKPOINT_IMPLEMENTATION
#ifndef CDP_DTENSOR_IMPLEMENTATION
#define CDP_DTENSOR_IMPLEMENTATION
#endif
#ifndef CDP_CORE_IMPLEMENTATION
#define CDP_CORE_IMPLEMENTATION
#endif
#endif
#include "cdp_dtensor.h"

#ifndef CDP_CHECKPOINT_INCLUDED
#define CDP_CHECKPOINT_INCLUDED

#define CDP_CHECKPOINT_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_CHECKPOINT_VERSION != CDP_VERSION
#error "cdp_checkpoint.h and cdp.h are of different versions: copy both from the same release"
#endif
#ifdef CDP_NO_OBJECTS
#error "cdp_checkpoint.h needs what CDP_NO_OBJECTS leaves out"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "checkpoint/checkpoint_api.h"
#include "checkpoint/reader_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "checkpoint/cxx_api.h"

#endif /* CDP_CHECKPOINT_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CHECKPOINT_IMPLEMENTATION)) \
    && !defined(CDP_CHECKPOINT_IMPL_INCLUDED)
#define CDP_CHECKPOINT_IMPL_INCLUDED

#include "text/json_read.h"
#include "text/tree.h"
#include "text/unpickle.h"

#include "checkpoint/sums.h"
#include "checkpoint/pieces.h"
#include "checkpoint/table.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/description.h"
#include "checkpoint/plan.h"
#include "checkpoint/disk.h"
#include "checkpoint/steps.h"
#include "checkpoint/verdict.h"
#include "checkpoint/create.h"
#include "checkpoint/agree.h"
#include "checkpoint/save.h"
#include "checkpoint/write.h"
#include "checkpoint/unchanged.h"
#include "checkpoint/run.h"
#include "checkpoint/background.h"
#include "checkpoint/zip.h"
#include "checkpoint/torch.h"
#include "checkpoint/reader.h"
#include "checkpoint/load.h"

#endif /* CDP_CHECKPOINT_IMPL_INCLUDED */
