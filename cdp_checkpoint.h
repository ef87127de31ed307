/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
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

/* Joined from src/cdp_checkpoint.h and what it includes: change that, then `make headers`. */
#ifdef CDP_CHECKPOINT_IMPLEMENTATION
#ifndef CDP_DTENSOR_IMPLEMENTATION
#define CDP_DTENSOR_IMPLEMENTATION
#endif
#ifndef CDP_CORE_IMPLEMENTATION
#define CDP_CORE_IMPLEMENTATION
#endif
#endif
#if !defined(CDP_DTENSOR_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_DTENSOR_IMPLEMENTATION) \
    || defined(CDP_CHECKPOINT_IMPLEMENTATION)
#include "cdp_dtensor.h"
#endif

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

/* ---- >>checkpoint/checkpoint_api: save from any layout, load into any other ------------------ */

#define CDP_CKPT_LATEST UINT64_MAX /* in place of a step: the newest complete one */

/* Bytes of the program, such as its random state. */
typedef struct cdp_ckpt_blob {
    const char *name; /* as the name of an item; unique among blobs and items */
    void *data;
    uint64_t bytes; /* that are saved; loading sets how many there were */
    uint64_t room;  /* for loading: most bytes that `data` can take */
    /* each rank has its own: a rank that the saved job did not have gets none (bytes 0). Else rank
       0's bytes are saved, and every rank gets them */
    bool per_rank;
} cdp_ckpt_blob;

typedef struct cdp_ckpt_desc {
    cdp_group *group; /* it must outlive the cdp_ckpt */
    const char *path; /* a folder that all ranks see, made if it is missing; copied */
    /* The same on all ranks, in one order. Kept: layouts and pointers are read at each call. */
    const cdp_item *items;
    uint32_t item_count;
    cdp_ckpt_blob *blobs; /* kept */
    uint32_t blob_count;
    uint64_t file_bytes; /* a file takes tensors up to so many bytes, or one (default: 5 GB) */
    uint32_t keep;       /* how many of the newest steps stay (default: all) */
    uint64_t keep_every; /* steps that are multiples of it stay, too (default: none) */
    uint64_t
        stage_bytes;  /* cdp_ckpt_save_async: most memory for copies; a call that needs more waits
                             until the rest is written, and in frames all ranks write in the call
                             (default: what this rank writes) */
    bool late;        /* cdp_ckpt_save_async copies nothing: see there */
    bool no_sync;     /* faster; a power cut may lose steps that were saved, older ones too */
    bool no_rename;   /* save: for file systems that cannot rename a folder, or only by copying it:
                         files have their final names from the start, and checkpoint.json, which is
                         written last, makes the step exist. One that is cut or damaged counts as
                         not finished: the next save of this step removes the rest. A rank that
                         still writes after a failed save must end before the step is saved anew */
    bool incremental; /* save: a file whose tensors all have the sums that they have in the newest
                         step is linked, or copied where links fail, or where that step is
                         removed meanwhile (up to 64 files of it), not written; the call reads
                         all that this rank would write. Of the older file only name and length
                         are compared: remove a newest step that is damaged before you save */
    bool no_verify;   /* load: do not compare sums, nor count who holds which element */
    bool partial;     /* load: items and blobs that are missing in the files keep their values */
    bool cast;        /* load: elements of another dtype are converted as cdp_convert() does, and
                         rounded once; sums are those of what the files have */
    double disk_bytes_per_us; /* that the disk takes from all ranks together, synced, in MB/s; for
                                 predicted_us alone (default: 750) */
    const cdp_os *os;         /* whose files are used; it must outlive the cdp_ckpt (default: the
                            group's) */
    /* May be NULL. Called by the thread that saves or loads, after each piece of at most 8 MiB:
       bytes of this rank that are done, of all that it will write or read. cdp_ckpt_save_async()
       has a thread of its own, except in frames. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} cdp_ckpt_desc;

typedef struct cdp_ckpt cdp_ckpt;

/* What the last save or load of this rank did. */
typedef struct cdp_ckpt_info {
    uint64_t step;
    uint64_t bytes_written, bytes_read; /* of tensors, by this rank; bytes_read: from files, more
                                           than it needs where short gaps are read, too */
    uint64_t total_bytes;               /* of all tensors, each once */
    uint64_t files;                     /* with tensors */
    uint64_t writes, reads;             /* calls of the os */
    uint64_t write_ns, sync_ns, commit_ns, read_ns;
    uint64_t stage_bytes, stall_ns; /* cdp_ckpt_save_async: bytes that were copied; how long its
                                       call, cdp_ckpt_staged() and cdp_ckpt_wait() took together */
    uint32_t missing, surplus; /* load: items that the files lack; tensors that nobody asked for */
    uint32_t cast;             /* load: items that were converted */
    double predicted_us;       /* save and preview: time that the disk needs for the tensors that
                                  are written, by desc.disk_bytes_per_us */
    uint64_t linked_files;     /* incremental: with tensors, that have not changed */
    uint64_t linked_bytes;     /* of their tensors, each once; what ranks write is the rest */
} cdp_ckpt_info;

/* Prepare to save and load. Local. Errors: INVALID (the text names the member), UNSUPPORTED (an os
   without files that can be synced; a big-endian machine), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_create(const cdp_ckpt_desc *desc, cdp_ckpt **out);
/* Local. Waits for a save in the background, whose result is lost. NULL is allowed. A second
   destroy does nothing, nor does that of a child of fork(); other calls are STATE then, and after
   the group was destroyed, too. */
CDP_API void cdp_ckpt_destroy(cdp_ckpt *ckpt);

/* Save all items and blobs as `step`, durably: after CDP_OK it survives crashes and power cuts.
   Collective; all ranks return the same status and text. Older steps beyond `keep` are removed
   afterwards. A save that fails leaves the group and all older steps as they were; an error other
   than INVALID and MISMATCH does not prove that the step is absent. Errors: INVALID (the step
   exists; a name that is empty, too long, not UTF-8, or there twice; a PARTIAL tensor; an item that
   ranks hold twice on different meshes, or not at all), UNSUPPORTED (a dtype that safetensors does
   not have), MISMATCH (items of two ranks differ: the text names the item and both), BUSY (another
   job saves there), IO (rank, file and errno: disk full, read-only, a folder that another rank does
   not see), NOMEM, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_save(cdp_ckpt *ckpt, uint64_t step);

/* Like cdp_ckpt_save(), but files are written after the call has returned: by a thread, over a
   group of its own, so that the program may communicate meanwhile; or, where the os has no threads
   or the group has no_thread, in frames: cdp_ckpt_wait(ckpt, 0) then makes one step of at most 8
   MiB. When it returns, the program may change items and blobs: what this rank writes was copied.
   With `late` nothing was copied: the program leaves the memory of items alone until it has called
   cdp_ckpt_staged(), for example before the optimizer writes; blobs were copied. Layouts,
   pointers and blobs are read in the call alone. OK: the save has begun. Collective; all ranks
   return the same status and text, but for TIMEOUT. Errors: those of cdp_ckpt_save() up to
   MISMATCH; how an earlier save ended, if cdp_ckpt_wait() has not said so: then nothing has begun;
   BUSY (an earlier one is still being written); TIMEOUT as for cdp_ckpt_staged(); the group's
   failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_save_async(cdp_ckpt *ckpt, uint64_t step);

/* With `late`: after OK the program may change the memory of items. Copies what is not written yet,
   which is nothing if writing fits into a forward and a backward pass. Local; OK at once if there
   is no save. A save that failed is no error here: cdp_ckpt_wait() and the next collective call say
   so. Errors: TIMEOUT (memory or stage_bytes are too small for the copy, and the rest was not
   written within the timeout of the group; call it again). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_staged(cdp_ckpt *ckpt);

/* Wait for a save in the background, at most so long. OK: its step is durable, or there is none;
   PENDING: it goes on; or why it failed: what cdp_ckpt_save() would have returned, the same on all
   ranks. Local; a rank that does not call it learns the failure from its next collective call.
   Without threads it is this call that writes. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_wait(cdp_ckpt *ckpt, uint32_t timeout_ms);

/* Load a step (CDP_CKPT_LATEST: the newest complete one) into the items and blobs, in whatever
   layout they have now. `path` (NULL: the desc's): a folder of steps, or one step, or files of
   safetensors with their folder, as Hugging Face has them, or one such file, or a folder that
   torch.distributed.checkpoint has written, where everything that is no tensor is a blob: the bytes
   of an archive of torch.save(). *found (may be NULL) becomes the step (0 where the files have
   none). Collective; all ranks return the same status and text. On an error items may hold
   anything. Errors: STATE (there is no such step; nothing was changed), MISMATCH (nothing was
   changed; lists what is missing, and every item whose shape or dtype is another one, but for
   `cast`), IO (rank, file, errno; with EBADMSG: a sum is wrong, the text names tensor and elements,
   or a file is not what it should be), INVALID (as for saving; a blob is larger than its room),
   UNSUPPORTED, NOMEM, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_load(
    cdp_ckpt *ckpt, const char *path, uint64_t step, uint64_t *found);

/* Local. */
CDP_API cdp_ckpt_info cdp_ckpt_info_of(const cdp_ckpt *ckpt);

/* What a save would write, without writing: set total_bytes, files, predicted_us and, as
   `bytes_written` and `writes`, what this rank would do; `incremental` counts for nothing. Local,
   also for items on a mesh on paper; without a group, items without a mesh count as this rank's.
   Errors: INVALID, UNSUPPORTED, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_preview(const cdp_ckpt_desc *desc, cdp_ckpt_info *out);

/* ---- >>checkpoint/reader_api: the files of one process, whose bytes need not be trusted ------ */

typedef struct cdp_ckpt_reader cdp_ckpt_reader;

/* A tensor or a blob in files. */
typedef struct cdp_ckpt_entry {
    const char *name; /* belongs to the reader */
    const char *file; /* name in its folder */
    cdp_dtype dtype;
    uint32_t ndim;
    uint64_t shape[CDP_TENSOR_DIMS], bytes;
    bool blob;
    /* how it was cut when it was saved, for people: placements, mesh, and shape if that was another
       one: "S0,R on 2x4", "S0 on 2 of 60". NULL: it was not cut on a mesh, or files do not say.
       Belongs to the reader */
    const char *layout;
} cdp_ckpt_entry;

/* Open `path`: what cdp_ckpt_load() says; of a folder of steps the newest complete one. Local. `os`
   (NULL: the default one) must outlive the reader. A reader belongs to one thread at a time.
   Errors: STATE (nothing there to read), IO (errno; EBADMSG: a file is not what it should be, and
   the text says why), UNSUPPORTED (a dtype that is not known here), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_open(
    const char *path, const cdp_os *os, cdp_ckpt_reader **out);
/* NULL is allowed. A second close does nothing; getters answer as for NULL then, other calls are
   STATE. */
CDP_API void cdp_ckpt_close(cdp_ckpt_reader *reader);
/* The step; 0 where files have none. */
CDP_API uint64_t cdp_ckpt_step_of(const cdp_ckpt_reader *reader);
CDP_API uint32_t cdp_ckpt_count(const cdp_ckpt_reader *reader);
/* UINT32_MAX: there is none of that name. */
CDP_API uint32_t cdp_ckpt_find(const cdp_ckpt_reader *reader, const char *name);
/* Zeros for an index that is too large. */
CDP_API cdp_ckpt_entry cdp_ckpt_entry_at(const cdp_ckpt_reader *reader, uint32_t index);
/* Read a box (NULL: all) into `out`, row-major. The sum is not compared. Errors: INVALID, IO,
   UNSUPPORTED (a tensor that PyTorch has saved with other strides than those of its shape),
   NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_read(
    cdp_ckpt_reader *reader, uint32_t index, const cdp_box *box, void *out);
/* Read one entry and compare its sums. Errors: IO (EBADMSG: the text names the entry and its
   elements), UNSUPPORTED (files without sums), INVALID, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_verify(cdp_ckpt_reader *reader, uint32_t index);
/* The newest complete step of a folder. Errors: STATE (there is none), IO, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_newest(
    const char *path, const cdp_os *os, uint64_t *step);

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>checkpoint/cxx_api: descs by reference in C++ ----------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_ckpt_create(const cdp_ckpt_desc &desc, cdp_ckpt **out) {
    return cdp_ckpt_create(&desc, out);
}
inline cdp_status cdp_ckpt_preview(const cdp_ckpt_desc &desc, cdp_ckpt_info *out) {
    return cdp_ckpt_preview(&desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_CHECKPOINT_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_CHECKPOINT_IMPLEMENTATION)) \
    && !defined(CDP_CHECKPOINT_IMPL_INCLUDED)
#define CDP_CHECKPOINT_IMPL_INCLUDED

/* ---- >>text/json_read: JSON, piece by piece (pure) ------------------------------------------- */

/* Knows: the grammar of JSON, and the NaN and Infinity that Python writes. Promises: any bytes
   yield pieces or a reason; no recursion, no memory; at most 32 levels. */
#ifndef CDP_SRC_TEXT_JSON_READ_H
#define CDP_SRC_TEXT_JSON_READ_H

#include <stdlib.h>
#include <string.h>

#define CDP__JSON_DEEP 32u   /* as many as cdp__json_reader.dicts has bits */
#define CDP__JSON_DIGITS 40u /* what further digits of a number say is lost */

typedef enum cdp__json_kind {
    CDP__JSON_BAD, /* this is no JSON: `why` says why, `at` says where */
    CDP__JSON_END, /* nothing follows the value */
    CDP__JSON_DICT,
    CDP__JSON_LIST,
    CDP__JSON_CLOSE, /* the end of the last dict or list that is open */
    CDP__JSON_KEY,   /* a text; a value follows */
    CDP__JSON_TEXT,
    CDP__JSON_WHOLE,
    CDP__JSON_REAL, /* also a whole number that has more than 63 bits */
    CDP__JSON_TRUE,
    CDP__JSON_FALSE,
    CDP__JSON_NULL
} cdp__json_kind;

typedef struct cdp__json_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    const char *why;
    uint32_t depth, dicts; /* bit i of dicts: the i-th open container is a dict */
    bool value, first;     /* a value must follow, after a key or at the beginning; just opened */
    /* of the last piece */
    const uint8_t *text; /* KEY, TEXT: what stands between the quotes, not decoded */
    uint64_t length;     /* of that; the decoded text is not longer */
    bool escapes;        /* it has some, else it is as it stands */
    int64_t whole;
    double real;
} cdp__json_reader;

CDP__PRIVATE cdp__json_reader cdp__json_open(const void *data, uint64_t bytes) {
    cdp__json_reader r;
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    r.value = true;
    return r;
}

CDP__PRIVATE cdp__json_kind cdp__json_bad(cdp__json_reader *r, const char *why) {
    r->why = why;
    return CDP__JSON_BAD;
}

/* The next byte that is no blank, which is not taken; 0: there is none. */
CDP__PRIVATE uint8_t cdp__json_look(cdp__json_reader *r) {
    for (; r->at < r->bytes; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    }
    return 0;
}

CDP__PRIVATE bool cdp__json_word(cdp__json_reader *r, const char *word) {
    const uint64_t n = strlen(word);
    if (r->bytes - r->at < n || memcmp(r->data + r->at, word, (size_t)n) != 0) return false;
    r->at += n;
    return true;
}

CDP__PRIVATE int cdp__hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits of an escape; -1: they are not there. */
CDP__PRIVATE int32_t cdp__json_unit_at(const uint8_t *s, uint64_t bytes) {
    int32_t unit = 0;
    uint32_t i;
    for (i = 0; i < 4; ++i) {
        const int digit = i < bytes ? cdp__hex_digit(s[i]) : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* Takes a text, from its first quote on. */
CDP__PRIVATE cdp__json_kind cdp__json_take_text(cdp__json_reader *r, cdp__json_kind kind) {
    const uint64_t from = ++r->at;
    r->escapes = false;
    for (; r->at < r->bytes && r->data[r->at] != '"'; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c < 32) return cdp__json_bad(r, "a text has a control character");
        if (c != '\\') continue;
        r->escapes = true;
        if (++r->at == r->bytes) break;
        if (r->data[r->at] == 'u') {
            if (cdp__json_unit_at(r->data + r->at + 1, r->bytes - r->at - 1) < 0)
                return cdp__json_bad(r, "four hexadecimal digits are expected after \\u");
            r->at += 4;
        } else if (!r->data[r->at] || !strchr("\"\\/bfnrt", r->data[r->at]))
            return cdp__json_bad(r, "there is no such escape");
    }
    if (r->at >= r->bytes) return cdp__json_bad(r, "a text does not end");
    r->text = r->data + from;
    r->length = r->at++ - from;
    return kind;
}

/* Decodes one escape of a text that was taken, from the byte after the backslash on. */
CDP__PRIVATE uint32_t cdp__json_escape(const uint8_t **at, const uint8_t *end) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    const uint8_t c = *(*at)++;
    const char *const known = strchr(from, c);
    uint32_t unit;
    int32_t low;
    if (c != 'u') return known ? (uint8_t)to[known - from] : c;
    unit = (uint32_t)cdp__json_unit_at(*at, 4);
    *at += 4;
    if (unit < 0xd800 || unit >= 0xdc00) return unit;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return unit;
    low = cdp__json_unit_at(*at + 2, 4);
    if (low < 0xdc00 || low >= 0xe000) return unit;
    *at += 6;
    return 0x10000 + ((unit - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
}

/* Writes the last key or text, decoded, to `out`, which has room for r->length bytes. Returns its
   length. What is no character, and a zero byte, become '?'. */
CDP__PRIVATE uint64_t cdp__json_decode(const cdp__json_reader *r, char *out) {
    const uint8_t *at = r->text, *const end = at + r->length;
    const char *const from = out;
    while (at < end) {
        uint32_t c = *at++;
        if (c != '\\') {
            *out++ = (char)c;
            continue;
        }
        c = cdp__json_escape(&at, end);
        out += cdp__utf8_put(c ? c : '?', out);
    }
    return (uint64_t)(out - from);
}

CDP__PRIVATE bool cdp__json_is_digit(const cdp__json_reader *r) {
    return r->at < r->bytes && r->data[r->at] >= '0' && r->data[r->at] <= '9';
}

/* Digits of a number without its point, as text for strtod(), which then needs no locale. */
typedef struct cdp__json_digits {
    char text[CDP__JSON_DIGITS + 32];
    uint32_t count;
    int64_t exponent;
} cdp__json_digits;

CDP__PRIVATE void cdp__json_take_digits(cdp__json_reader *r, cdp__json_digits *d, bool fraction) {
    for (; cdp__json_is_digit(r); ++r->at) {
        const bool kept = d->count < CDP__JSON_DIGITS;
        const char c = (char)r->data[r->at];
        if (kept && (d->count || c != '0')) d->text[d->count++] = c;
        d->exponent += (int64_t)!kept - fraction;
    }
}

CDP__PRIVATE double cdp__json_real_of(cdp__json_digits *d) {
    const bool below = d->exponent < 0;
    uint64_t e = below ? 0 - (uint64_t)d->exponent : (uint64_t)d->exponent;
    char *at = d->text + sizeof d->text;
    uint32_t n = d->count;
    if (!n) return 0;
    *--at = 0;
    do
        *--at = (char)('0' + e % 10);
    while (e /= 10);
    d->text[n++] = 'e';
    d->text[n++] = below ? '-' : '+';
    memmove(d->text + n, at, strlen(at) + 1);
    return strtod(d->text, NULL);
}

/* Takes what follows the digits of a real number: digits behind a point, an exponent. */
CDP__PRIVATE bool cdp__json_take_rest(cdp__json_reader *r, cdp__json_digits *d) {
    int64_t exponent = 0;
    bool below = false;
    if (r->at < r->bytes && r->data[r->at] == '.') {
        ++r->at;
        if (!cdp__json_is_digit(r)) return false;
        cdp__json_take_digits(r, d, true);
    }
    if (r->at < r->bytes && (r->data[r->at] | 32) == 'e') {
        ++r->at;
        if (r->at < r->bytes && (r->data[r->at] == '+' || r->data[r->at] == '-'))
            below = r->data[r->at++] == '-';
        if (!cdp__json_is_digit(r)) return false;
        for (; cdp__json_is_digit(r); ++r->at)
            if (exponent < 1000000) exponent = exponent * 10 + (r->data[r->at] - '0');
    }
    d->exponent += below ? -exponent : exponent;
    return true;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_number(cdp__json_reader *r) {
    const uint64_t from = r->at;
    const bool minus = cdp__json_word(r, "-");
    cdp__json_digits d;
    uint64_t whole = 0, i;
    uint8_t next;
    d.count = 0;
    d.exponent = 0;
    if (!cdp__json_is_digit(r)) {
        const bool nan = !minus && cdp__json_word(r, "NaN");
        if (!nan && !cdp__json_word(r, "Infinity"))
            return cdp__json_bad(r, "a value is expected here");
        r->real = strtod(nan ? "nan" : "inf", NULL);
        if (minus) r->real = -r->real;
        return CDP__JSON_REAL;
    }
    cdp__json_take_digits(r, &d, false);
    if (r->data[from + minus] == '0' && r->at > from + minus + 1)
        return cdp__json_bad(r, "a number begins with a zero");
    for (i = 0; i < d.count && d.count < 20; ++i)
        whole = whole * 10 + (uint64_t)(d.text[i] - '0');
    next = r->at < r->bytes ? r->data[r->at] : 0;
    if (next != '.' && (next | 32) != 'e' && d.count < 20 && whole <= (uint64_t)INT64_MAX) {
        r->whole = minus ? -(int64_t)whole : (int64_t)whole;
        return CDP__JSON_WHOLE;
    }
    if (!cdp__json_take_rest(r, &d)) return cdp__json_bad(r, "a digit is expected here");
    r->real = cdp__json_real_of(&d);
    if (minus) r->real = -r->real;
    return CDP__JSON_REAL;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_value(cdp__json_reader *r) {
    const uint8_t c = cdp__json_look(r);
    r->value = r->first = false;
    if (c == '"') return cdp__json_take_text(r, CDP__JSON_TEXT);
    if (c == '{' || c == '[') {
        if (r->depth == CDP__JSON_DEEP) return cdp__json_bad(r, "it is nested too deep");
        ++r->at;
        r->dicts &= ~(1u << r->depth);
        r->dicts |= (uint32_t)(c == '{') << r->depth++;
        r->first = true;
        return c == '{' ? CDP__JSON_DICT : CDP__JSON_LIST;
    }
    if (cdp__json_word(r, "true")) return CDP__JSON_TRUE;
    if (cdp__json_word(r, "false")) return CDP__JSON_FALSE;
    if (cdp__json_word(r, "null")) return CDP__JSON_NULL;
    return cdp__json_take_number(r);
}

/* Takes the next piece. After BAD or END it must not be called again. */
CDP__PRIVATE cdp__json_kind cdp__json_next(cdp__json_reader *r) {
    const bool dict = r->depth && r->dicts >> (r->depth - 1) & 1;
    uint8_t c;
    if (r->value) return cdp__json_take_value(r);
    c = cdp__json_look(r);
    if (!r->depth)
        return r->at < r->bytes ? cdp__json_bad(r, "its end is expected here") : CDP__JSON_END;
    if (c == (dict ? '}' : ']')) {
        ++r->at;
        --r->depth;
        r->first = false;
        return CDP__JSON_CLOSE;
    }
    if (!r->first && !cdp__json_word(r, ","))
        return cdp__json_bad(r, "a comma or the end of a list is expected here");
    if (!dict) return cdp__json_take_value(r);
    if (cdp__json_look(r) != '"') return cdp__json_bad(r, "a key is expected here");
    if (cdp__json_take_text(r, CDP__JSON_KEY) == CDP__JSON_BAD) return CDP__JSON_BAD;
    if (cdp__json_look(r) != ':') return cdp__json_bad(r, "a colon is expected here");
    ++r->at;
    r->value = true;
    return CDP__JSON_KEY;
}

#endif /* CDP_SRC_TEXT_JSON_READ_H */

/* ---- >>text/tree: the content of a file, as a tree ------------------------------------------- */

/* Knows: numbers, texts, lists and dicts of a file. Texts point into the file itself. Promises:
   memory is a chain of chunks, freed as a whole, and at most about 100 bytes for each byte of
   the file. */
#ifndef CDP_SRC_TEXT_TREE_H
#define CDP_SRC_TEXT_TREE_H

/* ---- memory */

#define CDP__CHUNK 16384u

typedef struct cdp__chunk {
    struct cdp__chunk *next;
    uint64_t room, used;
} cdp__chunk;

typedef struct cdp__chunks {
    const cdp_os *os;
    cdp__chunk *first;
} cdp__chunks;

/* Allocates `bytes` bytes, aligned to 8, which live as long as the chunks. */
CDP__PRIVATE void *cdp__chunks_room(cdp__chunks *t, uint64_t bytes) {
    cdp__chunk *c = t->first;
    const uint64_t need = (bytes + 7) / 8 * 8;
    if (!c || c->room - c->used < need) {
        const uint64_t room = cdp__max(need, CDP__CHUNK);
        c = (cdp__chunk *)cdp__alloc(t->os, sizeof *c + room);
        if (!c) return NULL;
        c->room = room;
        c->used = 0;
        c->next = t->first;
        t->first = c;
    }
    c->used += need;
    return (char *)(c + 1) + c->used - need;
}

CDP__PRIVATE void cdp__chunks_close(cdp__chunks *t) {
    cdp__chunk *c, *next;
    for (c = t->first; c; c = next) {
        next = c->next;
        cdp__free(t->os, c);
    }
    t->first = NULL;
}

/* Makes room for `need` items of `each` bytes in `at`, which may move. */
CDP__PRIVATE bool cdp__more_room(
    const cdp_os *os, void **at, uint64_t *room, uint64_t need, uint64_t each) {
    uint64_t more = *room ? *room : 64;
    void *bigger;
    if (need <= *room) return true;
    while (more < need)
        more *= 2;
    bigger = cdp__alloc(os, more * each);
    if (!bigger) return false;
    if (*room) memcpy(bigger, *at, (size_t)(*room * each));
    cdp__free(os, *at);
    *at = bigger;
    *room = more;
    return true;
}

/* ---- values */

typedef enum cdp__tree_kind {
    CDP__TREE_NONE,
    CDP__TREE_BOOL,
    CDP__TREE_INT,
    CDP__TREE_REAL,
    CDP__TREE_TEXT,
    CDP__TREE_LIST,
    CDP__TREE_DICT,
    CDP__TREE_GLOBAL, /* of a pickle: two texts, a module and a name in it */
    CDP__TREE_RECORD, /* a global, its arguments, and its state, if it has one */
    CDP__TREE_OUTSIDE /* a value that says what lies elsewhere */
} cdp__tree_kind;

typedef struct cdp__tree cdp__tree;

typedef struct cdp__tree_box { /* a list, or a dict: key, value, key, value */
    cdp__tree *items;
    uint64_t count, room;
    uint32_t mark; /* of who uses the tree; 0 at first */
} cdp__tree_box;

struct cdp__tree {
    cdp__tree_kind kind;
    uint32_t length; /* of a text */
    union {
        int64_t whole;
        double real;
        const char *text;
        cdp__tree_box *box;
    } as;
};

#define CDP__TREE_LOOKS 256u /* keys of a dict that are compared */

typedef struct cdp__tree_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    cdp__chunks memory;
    cdp__tree *stack, *memo;
    uint64_t *marks;
    uint64_t depth, stack_room, memo_count, memo_room, mark_count, mark_room;
    const char *why; /* why the file cannot be read */
    bool no_memory, unknown;
    bool records; /* a pickle may have globals, records, and values that say what lies elsewhere */
} cdp__tree_reader;

CDP__PRIVATE bool cdp__tree_bad(cdp__tree_reader *r, const char *why) {
    if (!r->why) r->why = why;
    return false;
}

CDP__PRIVATE bool cdp__tree_nomem(cdp__tree_reader *r) {
    r->no_memory = true;
    return cdp__tree_bad(r, "out of memory");
}

CDP__PRIVATE cdp__tree_box *cdp__tree_box_new(cdp__tree_reader *r) {
    cdp__tree_box *const b = (cdp__tree_box *)cdp__chunks_room(&r->memory, sizeof *b);
    if (b)
        memset(b, 0, sizeof *b);
    else
        cdp__tree_nomem(r);
    return b;
}

/* Append `count` values. */
CDP__PRIVATE bool cdp__tree_box_add(
    cdp__tree_reader *r, cdp__tree_box *b, const cdp__tree *v, uint64_t count) {
    if (b->count + count > b->room) {
        const uint64_t room = cdp__max(b->count + count, b->count * 2);
        cdp__tree *const more = (cdp__tree *)cdp__chunks_room(&r->memory, room * sizeof *v);
        if (!more) return cdp__tree_nomem(r);
        if (b->count) memcpy(more, b->items, (size_t)(b->count * sizeof *v));
        b->items = more;
        b->room = room;
    }
    if (count) memcpy(b->items + b->count, v, (size_t)(count * sizeof *v));
    b->count += count;
    return true;
}

CDP__PRIVATE bool cdp__tree_is(const cdp__tree *v, const char *text) {
    return v->kind == CDP__TREE_TEXT && v->length == strlen(text)
        && memcmp(v->as.text, text, v->length) == 0;
}

/* The value of a key in a dict; NULL: there is none. */
CDP__PRIVATE const cdp__tree *cdp__tree_get(const cdp__tree *v, const char *key) {
    uint64_t i, n;
    if (!v || v->kind != CDP__TREE_DICT) return NULL;
    n = cdp__min(v->as.box->count, 2 * CDP__TREE_LOOKS);
    for (i = 0; i + 1 < n; i += 2)
        if (cdp__tree_is(&v->as.box->items[i], key)) return &v->as.box->items[i + 1];
    return NULL;
}

CDP__PRIVATE const cdp__tree_box *cdp__tree_list(const cdp__tree *v) {
    return v && v->kind == CDP__TREE_LIST ? v->as.box : NULL;
}

CDP__PRIVATE void cdp__tree_close(cdp__tree_reader *r) {
    cdp__free(r->memory.os, r->stack);
    cdp__free(r->memory.os, r->memo);
    cdp__free(r->memory.os, r->marks);
    cdp__chunks_close(&r->memory);
}

#endif /* CDP_SRC_TEXT_TREE_H */

/* ---- >>text/unpickle: a pickle as a tree ----------------------------------------------------- */

/* Knows: the opcodes of values in protocols 0 to 5; and, if the reader takes records, those that
   make objects, as values that say of which class and from what. Promises: reading a file never
   looks up, calls or creates anything; any bytes yield a value or a reason. */
#ifndef CDP_SRC_TEXT_UNPICKLE_H
#define CDP_SRC_TEXT_UNPICKLE_H

CDP__PRIVATE bool cdp__pk_push(cdp__tree_reader *r, cdp__tree v) {
    if (!cdp__more_room(
            r->memory.os, (void **)&r->stack, &r->stack_room, r->depth + 1, sizeof *r->stack))
        return cdp__tree_nomem(r);
    r->stack[r->depth++] = v;
    return true;
}

CDP__PRIVATE cdp__tree cdp__pk_whole(cdp__tree_kind kind, int64_t n) {
    cdp__tree v;
    memset(&v, 0, sizeof v);
    v.kind = kind;
    v.as.whole = n;
    return v;
}

/* Takes the next `count` bytes; NULL: the file is too short. */
CDP__PRIVATE const uint8_t *cdp__pk_next(cdp__tree_reader *r, uint64_t count) {
    const uint8_t *const at = r->data + r->at;
    if (r->bytes - r->at < count) {
        cdp__tree_bad(r, "the file ends in the middle");
        return NULL;
    }
    r->at += count;
    return at;
}

/* A number of `count` bytes, the lowest first. */
CDP__PRIVATE bool cdp__pk_next_number(cdp__tree_reader *r, uint32_t count, uint64_t *out) {
    const uint8_t *const at = cdp__pk_next(r, count);
    uint32_t i;
    *out = 0;
    for (i = 0; at && i < count; ++i)
        *out |= (uint64_t)at[i] << 8 * i;
    return at != NULL;
}

/* The same with a sign bit in the last byte. */
CDP__PRIVATE bool cdp__pk_push_number(cdp__tree_reader *r, uint32_t count, bool has_sign) {
    uint64_t n;
    if (count > 8) return cdp__tree_bad(r, "a number has more than 8 bytes");
    if (!cdp__pk_next_number(r, count, &n)) return false;
    if (has_sign && count && count < 8 && n >> (8 * count - 1)) n |= ~0ull << 8 * count;
    return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_INT, (int64_t)n));
}

CDP__PRIVATE bool cdp__pk_push_long(cdp__tree_reader *r) {
    uint64_t count;
    return cdp__pk_next_number(r, 1, &count) && cdp__pk_push_number(r, (uint32_t)count, true);
}

CDP__PRIVATE bool cdp__pk_push_real(cdp__tree_reader *r) {
    const uint8_t *const at = cdp__pk_next(r, 8);
    cdp__tree v = cdp__pk_whole(CDP__TREE_REAL, 0);
    uint64_t bits = 0;
    uint32_t i;
    if (!at) return false;
    for (i = 0; i < 8; ++i)
        bits = bits << 8 | at[i];
    memcpy(&v.as.real, &bits, sizeof bits);
    return cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_push_text(cdp__tree_reader *r, uint32_t length_bytes) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
    uint64_t length;
    if (!cdp__pk_next_number(r, length_bytes, &length)) return false;
    if (length > UINT32_MAX) return cdp__tree_bad(r, "a text is too long");
    v.as.text = (const char *)cdp__pk_next(r, length);
    v.length = (uint32_t)length;
    return v.as.text && cdp__pk_push(r, v);
}

/* ---- protocol 0: values as lines of text */

/* Takes a line without its end. */
CDP__PRIVATE bool cdp__pk_line_next(cdp__tree_reader *r, const uint8_t **line, uint64_t *bytes) {
    const uint8_t *const from = r->data + r->at;
    const uint8_t *const end =
        r->at < r->bytes ? (const uint8_t *)memchr(from, '\n', (size_t)(r->bytes - r->at)) : NULL;
    if (!end) return cdp__tree_bad(r, "a line does not end");
    *line = from;
    *bytes = (uint64_t)(end - from);
    r->at += *bytes + 1;
    return true;
}

CDP__PRIVATE bool cdp__pk_line_is(const uint8_t *line, uint64_t bytes, const char *word) {
    return bytes == strlen(word) && memcmp(line, word, (size_t)bytes) == 0;
}

/* A whole number or a real one, as Python prints it; 00 and 01 are False and True. */
CDP__PRIVATE bool cdp__pk_push_line(cdp__tree_reader *r) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_REAL, 0);
    const uint8_t *line;
    uint64_t n;
    cdp__json_reader j;
    cdp__json_kind kind;
    if (!cdp__pk_line_next(r, &line, &n)) return false;
    if (n == 2 && line[0] == '0' && (line[1] | 1) == '1')
        return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, line[1] - '0'));
    if (n && line[n - 1] == 'L') --n;
    if (cdp__pk_line_is(line, n, "inf"))
        j = cdp__json_open("Infinity", 8);
    else if (cdp__pk_line_is(line, n, "-inf"))
        j = cdp__json_open("-Infinity", 9);
    else if (cdp__pk_line_is(line, n, "nan"))
        j = cdp__json_open("NaN", 3);
    else
        j = cdp__json_open(line, n);
    kind = cdp__json_next(&j);
    if ((kind != CDP__JSON_WHOLE && kind != CDP__JSON_REAL) || cdp__json_next(&j) != CDP__JSON_END)
        return cdp__tree_bad(r, "a line holds no number");
    v.as.real = j.real;
    return cdp__pk_push(r, kind == CDP__JSON_WHOLE ? cdp__pk_whole(CDP__TREE_INT, j.whole) : v);
}

/* The number after \x, \u or \U, of `digits` digits; UINT32_MAX: it is not there. */
CDP__PRIVATE uint32_t cdp__pk_escaped(const uint8_t *at, const uint8_t *end, uint32_t digits) {
    uint32_t code = 0, i;
    for (i = 0; i < digits; ++i) {
        const int digit = at + i < end ? cdp__hex_digit(at[i]) : -1;
        if (digit < 0) return UINT32_MAX;
        code = code << 4 | (uint32_t)digit;
    }
    return code;
}

/* A text in quotes, as Python 2 prints it. */
CDP__PRIVATE uint32_t cdp__pk_unquote(const uint8_t *at, const uint8_t *end, char *out) {
    static const char from[] = "nrtabfv", to[] = "\n\r\t\a\b\f\v";
    char *const start = out;
    while (at < end) {
        const char *known;
        uint32_t code;
        if (*at != '\\' || at + 1 == end) {
            *out++ = (char)*at++;
            continue;
        }
        known = at[1] ? strchr(from, at[1]) : NULL;
        code = at[1] == 'x' ? cdp__pk_escaped(at + 2, end, 2) : UINT32_MAX;
        if (code != UINT32_MAX)
            *out++ = (char)code;
        else
            *out++ = known ? to[known - from] : (char)at[1];
        at += code != UINT32_MAX ? 4 : 2;
    }
    return (uint32_t)(out - start);
}

/* A text of Latin-1 in which other characters are \u and \U. */
CDP__PRIVATE uint32_t cdp__pk_unescape(const uint8_t *at, const uint8_t *end, char *out) {
    char *const start = out;
    while (at < end) {
        const bool escaped = at[0] == '\\' && at + 1 < end && (at[1] | 32) == 'u';
        const uint32_t digits = escaped ? 4u << (at[1] == 'U') : 0;
        const uint32_t code = digits ? cdp__pk_escaped(at + 2, end, digits) : UINT32_MAX;
        out += cdp__utf8_put(code != UINT32_MAX ? code : *at, out);
        at += code != UINT32_MAX ? digits + 2 : 1;
    }
    return (uint32_t)(out - start);
}

CDP__PRIVATE bool cdp__pk_push_line_text(cdp__tree_reader *r, bool quoted) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
    const uint8_t *line;
    uint64_t n;
    char *copy;
    if (!cdp__pk_line_next(r, &line, &n)) return false;
    if (quoted && (n < 2 || line[0] != line[n - 1] || (line[0] != '"' && line[0] != '\'')))
        return cdp__tree_bad(r, "a text has no quotes");
    if (n > UINT32_MAX / 2) return cdp__tree_bad(r, "a line is too long");
    copy = (char *)cdp__chunks_room(&r->memory, 2 * n + 4);
    if (!copy) return cdp__tree_nomem(r);
    v.length = quoted ? cdp__pk_unquote(line + 1, line + n - 1, copy)
                      : cdp__pk_unescape(line, line + n, copy);
    v.as.text = copy;
    return cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_push_box(cdp__tree_reader *r, cdp__tree_kind kind) {
    cdp__tree v = cdp__pk_whole(kind, 0);
    v.as.box = cdp__tree_box_new(r);
    return v.as.box && cdp__pk_push(r, v);
}

/* Moves the last `count` values into the container below them, which must be of this kind. */
CDP__PRIVATE bool cdp__pk_fill(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    cdp__tree *box;
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth < floor + count + 1) return cdp__tree_bad(r, "values are missing on the stack");
    box = &r->stack[r->depth - count - 1];
    if (box->kind != kind) return cdp__tree_bad(r, "items are added to what is no list or dict");
    if (kind == CDP__TREE_DICT && count % 2) return cdp__tree_bad(r, "a key has no value");
    r->depth -= count;
    return cdp__tree_box_add(r, box->as.box, r->stack + r->depth, count);
}

CDP__PRIVATE bool cdp__pk_mark(cdp__tree_reader *r) {
    if (!cdp__more_room(
            r->memory.os, (void **)&r->marks, &r->mark_room, r->mark_count + 1, sizeof *r->marks))
        return cdp__tree_nomem(r);
    r->marks[r->mark_count++] = r->depth;
    return true;
}

/* Removes the last mark, and returns the number of values above it. */
CDP__PRIVATE bool cdp__pk_marked(cdp__tree_reader *r, uint64_t *count) {
    if (!r->mark_count) return cdp__tree_bad(r, "there is no mark");
    *count = r->depth - r->marks[--r->mark_count];
    return true;
}

CDP__PRIVATE bool cdp__pk_fill_marked(cdp__tree_reader *r, cdp__tree_kind kind) {
    uint64_t count;
    return cdp__pk_marked(r, &count) && cdp__pk_fill(r, count, kind);
}

/* Makes a list or a dict of the last `count` values. */
CDP__PRIVATE bool cdp__pk_gather(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    cdp__tree v = cdp__pk_whole(kind, 0);
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth < floor + count) return cdp__tree_bad(r, "values are missing on the stack");
    if (kind == CDP__TREE_DICT && count % 2) return cdp__tree_bad(r, "a key has no value");
    v.as.box = cdp__tree_box_new(r);
    if (!v.as.box) return false;
    r->depth -= count;
    return (!count || cdp__tree_box_add(r, v.as.box, r->stack + r->depth, count))
        && cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_gather_marked(cdp__tree_reader *r, cdp__tree_kind kind) {
    uint64_t count;
    return cdp__pk_marked(r, &count) && cdp__pk_gather(r, count, kind);
}

/* Memoizes the last value under a number. Writers count from 0, so no number exceeds the length
   of the file. */
CDP__PRIVATE bool cdp__pk_keep(cdp__tree_reader *r, uint64_t n) {
    if (!r->depth) return cdp__tree_bad(r, "there is no value to remember");
    if (n > r->bytes) return cdp__tree_bad(r, "a value is remembered under too large a number");
    if (!cdp__more_room(r->memory.os, (void **)&r->memo, &r->memo_room, n + 1, sizeof *r->memo))
        return cdp__tree_nomem(r);
    while (r->memo_count <= n)
        r->memo[r->memo_count++] = cdp__pk_whole(CDP__TREE_NONE, 1);
    r->memo[n] = r->stack[r->depth - 1];
    return true;
}

CDP__PRIVATE bool cdp__pk_keep_number(cdp__tree_reader *r, uint32_t bytes) {
    uint64_t n;
    return cdp__pk_next_number(r, bytes, &n) && cdp__pk_keep(r, n);
}

CDP__PRIVATE bool cdp__pk_again(cdp__tree_reader *r, uint64_t n) {
    if (n >= r->memo_count || (r->memo[n].kind == CDP__TREE_NONE && r->memo[n].as.whole))
        return cdp__tree_bad(r, "a value is used that was never remembered");
    return cdp__pk_push(r, r->memo[n]);
}

CDP__PRIVATE bool cdp__pk_again_number(cdp__tree_reader *r, uint32_t bytes) {
    uint64_t n;
    return cdp__pk_next_number(r, bytes, &n) && cdp__pk_again(r, n);
}

/* The same with the number as a line. */
CDP__PRIVATE bool cdp__pk_memo_line(cdp__tree_reader *r, bool keep) {
    if (!cdp__pk_push_line(r)) return false;
    const cdp__tree v = r->stack[--r->depth];
    if ((v.kind != CDP__TREE_INT && v.kind != CDP__TREE_BOOL) || v.as.whole < 0)
        return cdp__tree_bad(r, "a line holds no number");
    return keep ? cdp__pk_keep(r, (uint64_t)v.as.whole) : cdp__pk_again(r, (uint64_t)v.as.whole);
}

/* Drops the last value. */
CDP__PRIVATE bool cdp__pk_pop(cdp__tree_reader *r) {
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth <= floor) return cdp__tree_bad(r, "values are missing on the stack");
    --r->depth;
    return true;
}

CDP__PRIVATE bool cdp__pk_pop_marked(cdp__tree_reader *r) {
    uint64_t count;
    if (!cdp__pk_marked(r, &count)) return false;
    r->depth -= count;
    return true;
}

CDP__PRIVATE bool cdp__pk_protocol(cdp__tree_reader *r) {
    uint64_t n;
    if (!cdp__pk_next_number(r, 1, &n)) return false;
    return (n >= 2 && n <= 5) || cdp__tree_bad(r, "this protocol is none of 2 to 5");
}

/* ---- records */

/* Makes a value of this kind of the last `count` ones. */
CDP__PRIVATE bool cdp__pk_record(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    if (!cdp__pk_gather(r, count, CDP__TREE_LIST)) return false;
    r->stack[r->depth - 1].kind = kind;
    return true;
}

CDP__PRIVATE bool cdp__pk_global(cdp__tree_reader *r) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
        const uint8_t *line;
        uint64_t n;
        if (!cdp__pk_line_next(r, &line, &n)) return false;
        v.as.text = (const char *)line;
        v.length = (uint32_t)cdp__min(n, UINT32_MAX);
        if (!cdp__pk_push(r, v)) return false;
    }
    return cdp__pk_record(r, 2, CDP__TREE_GLOBAL);
}

/* Whether a value is this global. */
CDP__PRIVATE bool cdp__pk_is(const cdp__tree *v, const char *module, const char *name) {
    return v->kind == CDP__TREE_GLOBAL && cdp__tree_is(&v->as.box->items[0], module)
        && cdp__tree_is(&v->as.box->items[1], name);
}

/* A global and its arguments, which are a record; but an OrderedDict is a dict. */
CDP__PRIVATE bool cdp__pk_made(cdp__tree_reader *r) {
    const cdp__tree *v;
    if (!cdp__pk_record(r, 2, CDP__TREE_RECORD)) return false;
    v = r->stack[r->depth - 1].as.box->items;
    if (v[0].kind != CDP__TREE_GLOBAL || v[1].kind != CDP__TREE_LIST)
        return cdp__tree_bad(r, "an object is made of what is no class");
    if (!cdp__pk_is(v, "collections", "OrderedDict") || v[1].as.box->count) return true;
    --r->depth;
    return cdp__pk_push_box(r, CDP__TREE_DICT);
}

/* The last value becomes the state of the record below it. */
CDP__PRIVATE bool cdp__pk_state(cdp__tree_reader *r) {
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    const cdp__tree *v;
    if (r->depth < floor + 2) return cdp__tree_bad(r, "values are missing on the stack");
    v = &r->stack[--r->depth - 1];
    if (v->kind == CDP__TREE_DICT) return true; /* attributes of an OrderedDict */
    if (v->kind != CDP__TREE_RECORD || v->as.box->count != 2)
        return cdp__tree_bad(r, "a state is of no object");
    return cdp__tree_box_add(r, v->as.box, &r->stack[r->depth], 1);
}

/* Opcodes of records. */
CDP__PRIVATE bool cdp__pk_opcode_record(cdp__tree_reader *r, uint8_t code) {
    switch (r->records ? code : 0) {
    case 'c': return cdp__pk_global(r);
    case 0x93: return cdp__pk_record(r, 2, CDP__TREE_GLOBAL);
    case 'R':
    case 0x81: return cdp__pk_made(r);
    case 'b': return cdp__pk_state(r);
    case 'Q': return cdp__pk_record(r, 1, CDP__TREE_OUTSIDE);
    case 'C': return cdp__pk_push_text(r, 1);
    case 'B': return cdp__pk_push_text(r, 4);
    case 0x8d:
    case 0x8e: return cdp__pk_push_text(r, 8);
    default: r->unknown = true; return cdp__tree_bad(r, "this opcode is not known here");
    }
}

/* Opcodes that push a value. */
CDP__PRIVATE bool cdp__pk_opcode_value(cdp__tree_reader *r, uint8_t code) {
    switch (code) {
    case 'N': return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_NONE, 0));
    case 0x88: return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, 1));
    case 0x89: return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, 0));
    case 'K': return cdp__pk_push_number(r, 1, false);
    case 'M': return cdp__pk_push_number(r, 2, false);
    case 'J': return cdp__pk_push_number(r, 4, true);
    case 0x8a: return cdp__pk_push_long(r);
    case 'G': return cdp__pk_push_real(r);
    case 'I':
    case 'L':
    case 'F': return cdp__pk_push_line(r);
    case 'S': return cdp__pk_push_line_text(r, true);
    case 'V': return cdp__pk_push_line_text(r, false);
    case 'T':
    case 'X': return cdp__pk_push_text(r, 4);
    case 'U':
    case 0x8c: return cdp__pk_push_text(r, 1);
    case ']': return cdp__pk_push_box(r, CDP__TREE_LIST);
    case ')': return cdp__pk_push_box(r, CDP__TREE_LIST);
    case '}': return cdp__pk_push_box(r, CDP__TREE_DICT);
    default: return cdp__pk_opcode_record(r, code);
    }
}

CDP__PRIVATE bool cdp__pk_opcode(cdp__tree_reader *r, uint8_t code) {
    switch (code) {
    case 0x80: return cdp__pk_protocol(r);
    case 0x95: return cdp__pk_next(r, 8) != NULL; /* the length of a frame */
    case '(': return cdp__pk_mark(r);
    case 'e': return cdp__pk_fill_marked(r, CDP__TREE_LIST);
    case 'a': return cdp__pk_fill(r, 1, CDP__TREE_LIST);
    case 'u': return cdp__pk_fill_marked(r, CDP__TREE_DICT);
    case 's': return cdp__pk_fill(r, 2, CDP__TREE_DICT);
    case 'l':
    case 't': return cdp__pk_gather_marked(r, CDP__TREE_LIST);
    case 'd': return cdp__pk_gather_marked(r, CDP__TREE_DICT);
    case 0x85:
    case 0x86:
    case 0x87: return cdp__pk_gather(r, code - 0x84u, CDP__TREE_LIST);
    case 'q': return cdp__pk_keep_number(r, 1);
    case 'r': return cdp__pk_keep_number(r, 4);
    case 'p': return cdp__pk_memo_line(r, true);
    case 'h': return cdp__pk_again_number(r, 1);
    case 'j': return cdp__pk_again_number(r, 4);
    case 'g': return cdp__pk_memo_line(r, false);
    case '0': return cdp__pk_pop(r);
    case '1': return cdp__pk_pop_marked(r);
    case '2': return r->depth ? cdp__pk_push(r, r->stack[r->depth - 1]) : cdp__pk_pop(r);
    case 0x94: return cdp__pk_keep(r, r->memo_count);
    default: return cdp__pk_opcode_value(r, code);
    }
}

/* Reads the value of a pickle. Bytes after its end are ignored. */
CDP__PRIVATE bool cdp__unpickle(cdp__tree_reader *r, cdp__tree *out) {
    const uint8_t *code;
    while ((code = cdp__pk_next(r, 1)) != NULL && *code != '.')
        if (!cdp__pk_opcode(r, *code)) return false;
    if (!code) return false;
    if (r->depth != 1 || r->mark_count) return cdp__tree_bad(r, "it does not end with one value");
    *out = r->stack[0];
    return true;
}

#endif /* CDP_SRC_TEXT_UNPICKLE_H */

/* ---- >>checkpoint/sums: a sum of the elements of a tensor that any division into pieces adds up to  */

/* (pure)

   Knows: bits of elements and their indices. Promises: sums of pieces that are disjoint add up,
   modulo 2^64, to the sum of the whole; one changed element of up to 4 bytes always shows, other
   damage escapes with a chance of about 2^-32. Not against malice. */

/* The sum is SUM over k of x(k) w(k): x(k) are the bits of element k, as a number; w(k) is an odd
   number of a table, at k % 2048, times an odd one made from k / 2048. An odd factor loses no bit.
   The halves of an element of 8 bytes have tables of their own. */
#define CDP__CK_BLOCK 2048u

typedef struct cdp__ck_weights {
    uint32_t low[CDP__CK_BLOCK], high[CDP__CK_BLOCK];
} cdp__ck_weights;

CDP__PRIVATE void cdp__ck_weights_fill(cdp__ck_weights *w) {
    uint32_t i;
    for (i = 0; i < CDP__CK_BLOCK; ++i) {
        w->low[i] = (uint32_t)(cdp__mix(2 * i + 1) >> 32) | 1u;
        w->high[i] = (uint32_t)(cdp__mix(2 * i + 2) >> 32) | 1u;
    }
}

/* Many elements at a time, as far as the processor can: *done becomes how many these were. */
#ifdef __SSE2__
/* Adds products of four elements and four weights to both halves of `sum`. */
CDP__PRIVATE __m128i cdp__ck_four(__m128i sum, __m128i x, const uint32_t *w) {
    const __m128i by = _mm_loadu_si128((const __m128i *)(const void *)w);
    sum = _mm_add_epi64(sum, _mm_mul_epu32(x, by));
    return _mm_add_epi64(sum, _mm_mul_epu32(_mm_srli_epi64(x, 32), _mm_srli_epi64(by, 32)));
}
CDP__PRIVATE __m128i cdp__ck_eight(__m128i sum, __m128i x, const uint32_t *w) {
    const __m128i zero = _mm_setzero_si128();
    sum = cdp__ck_four(sum, _mm_unpacklo_epi16(x, zero), w);
    return cdp__ck_four(sum, _mm_unpackhi_epi16(x, zero), w + 4);
}
CDP__PRIVATE uint64_t cdp__ck_both(__m128i sum) {
    uint64_t halves[2];
    memcpy(halves, &sum, sizeof sum);
    return halves[0] + halves[1];
}
/* Elements of 1, 2 or 4 bytes, 16 bytes at a time. */
CDP__PRIVATE uint64_t cdp__ck_sum_many(
    const uint32_t *w, const uint8_t *at, uint64_t elem, uint64_t n, uint64_t *done) {
    const __m128i zero = _mm_setzero_si128();
    __m128i sum = zero;
    uint64_t i;
    for (i = 0; i + 16 / elem <= n; i += 16 / elem) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(at + i * elem));
        if (elem == 4)
            sum = cdp__ck_four(sum, x, w + i);
        else if (elem == 2)
            sum = cdp__ck_eight(sum, x, w + i);
        else {
            sum = cdp__ck_eight(sum, _mm_unpacklo_epi8(x, zero), w + i);
            sum = cdp__ck_eight(sum, _mm_unpackhi_epi8(x, zero), w + i + 8);
        }
    }
    *done = i;
    return cdp__ck_both(sum);
}
#else
CDP__PRIVATE uint64_t cdp__ck_sum_many(
    const uint32_t *w, const uint8_t *at, uint64_t elem, uint64_t n, uint64_t *done) {
    (void)w;
    (void)at;
    (void)elem;
    (void)n;
    *done = 0;
    return 0;
}
#endif

CDP__PRIVATE uint64_t cdp__ck_sum1(const uint32_t *w, const uint8_t *at, uint64_t n) {
    uint64_t i, sum = cdp__ck_sum_many(w, at, 1, n, &i);
    for (; i < n; ++i)
        sum += (uint64_t)at[i] * w[i];
    return sum;
}

CDP__PRIVATE uint64_t cdp__ck_sum2(const uint32_t *w, const uint8_t *at, uint64_t n) {
    uint64_t i, sum = cdp__ck_sum_many(w, at, 2, n, &i);
    for (; i < n; ++i) {
        uint16_t x;
        memcpy(&x, at + 2 * i, 2);
        sum += (uint64_t)x * w[i];
    }
    return sum;
}

CDP__PRIVATE uint64_t cdp__ck_sum4(const uint32_t *w, const uint8_t *at, uint64_t n) {
    uint64_t i, sum = cdp__ck_sum_many(w, at, 4, n, &i);
    for (; i < n; ++i) {
        uint32_t x;
        memcpy(&x, at + 4 * i, 4);
        sum += (uint64_t)x * w[i];
    }
    return sum;
}

CDP__PRIVATE uint64_t cdp__ck_sum8(
    const uint32_t *low, const uint32_t *high, const uint8_t *at, uint64_t n) {
    uint64_t sum = 0, i;
    for (i = 0; i < n; ++i) {
        uint64_t x;
        memcpy(&x, at + 8 * i, 8);
        sum += (x & 0xffffffffu) * low[i] + (x >> 32) * high[i];
    }
    return sum;
}

/* The sum of elements k to k + count - 1 of a tensor, of 1, 2, 4 or 8 bytes each. */
CDP__PRIVATE uint64_t cdp__ck_sum(
    const cdp__ck_weights *w, const void *data, uint64_t elem, uint64_t k, uint64_t count) {
    const uint8_t *at = (const uint8_t *)data;
    uint64_t sum = 0;
    while (count) {
        const uint64_t from = k % CDP__CK_BLOCK, n = cdp__min(CDP__CK_BLOCK - from, count);
        const uint32_t *const low = w->low + from;
        uint64_t part;
        if (elem == 1)
            part = cdp__ck_sum1(low, at, n);
        else if (elem == 2)
            part = cdp__ck_sum2(low, at, n);
        else if (elem == 4)
            part = cdp__ck_sum4(low, at, n);
        else
            part = cdp__ck_sum8(low, w->high + from, at, n);
        sum += part * (cdp__mix(k / CDP__CK_BLOCK + 1) | 1u);
        at += n * elem;
        k += n;
        count -= n;
    }
    return sum;
}

/* Adds elements k to k + count - 1 to the sums of slabs of `slab` elements each. */
CDP__PRIVATE void cdp__ck_sum_slabs(const cdp__ck_weights *w, const void *data, uint64_t elem,
    uint64_t k, uint64_t count, uint64_t slab, uint64_t *sums) {
    const uint8_t *at = (const uint8_t *)data;
    while (count) {
        const uint64_t n = cdp__min(slab - k % slab, count);
        sums[k / slab] += cdp__ck_sum(w, at, elem, k, n);
        at += n * elem;
        k += n;
        count -= n;
    }
}

/* ---- >>checkpoint/pieces: which elements a rank holds, writes and reads ---------------------- */

/* Knows: layouts and the coordinates of a rank. Promises: of all ranks of a mesh, each element is
   in the share of exactly one; replicas have equal shares up to one element. */

/* The box of a rank as runs: stretches that are contiguous in the row-major tensor, and follow one
   another in the memory of the rank. A flat view has the same indices as what it is a view of. */
typedef struct cdp__ck_piece {
    cdp_box box;
    uint64_t shape[CDP_TENSOR_DIMS];
    uint32_t outer;       /* dimensions 0 .. outer - 1 count the runs */
    uint64_t count, run;  /* elements; of one run */
    uint64_t first, last; /* the share that this rank writes: elements of its memory */
} cdp__ck_piece;

typedef struct cdp__ck_run {
    uint64_t at, place, count; /* in the tensor; in the memory of the rank; elements */
} cdp__ck_run;

/* Completes a piece whose box and shape are set. */
CDP__PRIVATE void cdp__ck_piece_runs(cdp__ck_piece *p, uint32_t ndim) {
    uint32_t d;
    p->count = p->run = 1;
    p->outer = 0;
    for (d = 0; d < ndim; ++d)
        p->count *= p->box.size[d];
    for (d = ndim; d-- > 0;) {
        p->run *= p->box.size[d];
        if (p->box.size[d] == p->shape[d]) continue;
        p->outer = d;
        break;
    }
    p->first = 0;
    p->last = p->count;
}

/* Replica `copy` of `copies` writes its part of the piece. */
CDP__PRIVATE void cdp__ck_piece_share(cdp__ck_piece *p, uint64_t copy, uint64_t copies) {
    const uint64_t each = p->count / copies, more = p->count % copies;
    p->first = copy * each + cdp__min(copy, more);
    p->last = p->first + each + (copy < more);
}

/* What the rank at coord[] of the layout's mesh holds. Without a mesh: rank `rank` of `size`, each
   of which holds the whole tensor. coord NULL: this rank. */
CDP__PRIVATE cdp__ck_piece cdp__ck_piece_of(
    const cdp_layout *l, const uint32_t *coord, uint32_t rank, uint32_t size) {
    const cdp_mesh_desc *const m = l->mesh ? cdp_mesh_desc_of(l->mesh) : NULL;
    uint64_t copy = 0, copies = 1;
    cdp__ck_piece p;
    uint32_t d;
    memset(&p, 0, sizeof p);
    for (d = 0; d < l->ndim; ++d)
        p.shape[d] = p.box.size[d] = l->shape[d];
    if (!m) {
        cdp__ck_piece_runs(&p, l->ndim);
        cdp__ck_piece_share(&p, rank, size);
        return p;
    }
    if (!coord && cdp_mesh_coord(l->mesh, CDP_NO_DIM) == CDP_NO_DIM) {
        memset(&p, 0, sizeof p);
        return p;
    }
    (void)cdp_layout_box(l, coord, &p.box);
    cdp__ck_piece_runs(&p, l->ndim);
    for (d = 0; d < m->ndim; ++d) {
        if (l->place[d].kind != CDP_PLACE_REPLICATE) continue;
        copy = copy * m->shape[d] + (coord ? coord[d] : cdp_mesh_coord(l->mesh, d));
        copies *= m->shape[d];
    }
    cdp__ck_piece_share(&p, copy, copies);
    return p;
}

/* The same of an item. */
CDP__PRIVATE cdp__ck_piece cdp__ck_item_piece(const cdp_item *i, uint32_t rank, uint32_t size) {
    const cdp_layout *const l = &i->tensor.layout;
    cdp__ck_piece p;
    uint32_t d;
    if (!i->part) return cdp__ck_piece_of(l, NULL, rank, size);
    memset(&p, 0, sizeof p);
    p.shape[0] = 1;
    for (d = 0; d < l->ndim; ++d)
        p.shape[0] *= l->shape[d];
    p.box.start[0] = i->first;
    p.box.size[0] = i->count;
    cdp__ck_piece_runs(&p, 1);
    cdp__ck_piece_share(&p, i->copy, i->copies ? i->copies : 1);
    return p;
}

/* The run that contains element `place` of the memory of the rank, from there on, and at most up
   to `last`. place < last <= count. */
CDP__PRIVATE cdp__ck_run cdp__ck_run_at(const cdp__ck_piece *p, uint64_t place, uint64_t last) {
    const uint64_t within = place % p->run;
    uint64_t index = place / p->run, step = 1;
    cdp__ck_run r;
    uint32_t d;
    r.place = place;
    r.count = cdp__min(p->run - within, last - place);
    r.at = within;
    for (d = CDP_TENSOR_DIMS; d-- > 0;) {
        uint64_t along = p->box.start[d];
        if (d < p->outer) {
            along += index % p->box.size[d];
            index /= p->box.size[d];
        }
        r.at += along * step;
        step *= p->shape[d] ? p->shape[d] : 1; /* 0: the tensor has fewer dimensions */
    }
    return r;
}

/* ---- >>checkpoint/table: what lies where in the files of a checkpoint ------------------------ */

/* Knows: names, shapes, files, offsets, sums. Promises: names are unique; memory is freed as a
   whole. */

#ifndef CDP__CK_SLAB
#define CDP__CK_SLAB (4u << 20) /* bytes with a sum of their own; tests have smaller ones */
#endif
#define CDP__CK_NAME 511u /* longest name, in bytes */

typedef struct cdp__ck_entry {
    uint64_t name;            /* byte of `text` */
    uint64_t begin, layout;   /* bytes of `text`: begin of file names, while saving; 0: no layout */
    uint64_t at, bytes;       /* in the file */
    uint64_t first_sum, sums; /* of `sums`; 0: the files have none */
    uint64_t first_block, blocks; /* of `blocks`; 0: it lies at one place */
    uint64_t shape[CDP_TENSOR_DIMS];
    cdp_dtype dtype;
    uint32_t ndim, file, item; /* item: of the desc, while saving */
    bool blob;
} cdp__ck_entry;

typedef struct cdp__ck_file {
    uint64_t name, data_at, bytes; /* data_at: length of the header with its own length */
    bool synced;                   /* by this rank, while saving */
    bool linked;                   /* while saving: it has its bytes of an earlier step */
    int32_t held; /* and, on rank 0, this descriptor of that step's file, plus 1; 0: none */
} cdp__ck_file;

/* A box of a tensor that lies somewhere in files, row-major. */
typedef struct cdp__ck_block {
    cdp_box box;
    uint64_t at, bytes; /* in the file */
    uint64_t archive;   /* not 0: an archive of so many bytes is there, which has the elements */
    uint32_t file;
} cdp__ck_block;

typedef struct cdp__ck_table {
    const cdp_os *os;
    cdp__ck_entry *entries;
    cdp__ck_file *files;
    cdp__ck_block *blocks;
    char *text;
    uint64_t *sums;
    uint32_t *slots; /* open addressing: entry + 1, by name */
    uint64_t count, room, file_count, file_room, text_used, text_room, sum_count, sum_room, mask;
    uint64_t block_count, block_room;
    uint64_t step, slab; /* slab: bytes */
    uint64_t looks;      /* comparisons of files that somebody else wrote */
    const char *why;     /* why bytes cannot be read */
    cdp_status status;   /* of that: IO, UNSUPPORTED, NOMEM */
} cdp__ck_table;

CDP__PRIVATE void cdp__ck_table_open(cdp__ck_table *t, const cdp_os *os) {
    memset(t, 0, sizeof *t);
    t->os = os;
    t->slab = CDP__CK_SLAB;
}

CDP__PRIVATE void cdp__ck_table_close(cdp__ck_table *t) {
    cdp__free(t->os, t->entries);
    cdp__free(t->os, t->files);
    cdp__free(t->os, t->blocks);
    cdp__free(t->os, t->text);
    cdp__free(t->os, t->sums);
    cdp__free(t->os, t->slots);
}

/* Notes the first reason why bytes cannot be read. */
CDP__PRIVATE bool cdp__ck_bad(cdp__ck_table *t, const char *why) {
    if (!t->why) {
        t->why = why;
        t->status = CDP_ERR_IO;
    }
    return false;
}

CDP__PRIVATE bool cdp__ck_none(cdp__ck_table *t) {
    if (!t->why) {
        t->why = "out of memory";
        t->status = CDP_ERR_NOMEM;
    }
    return false;
}

/* Makes room for `need` things of `each` bytes in `at`, which may move. */
CDP__PRIVATE void *cdp__ck_room(
    cdp__ck_table *t, void *at, uint64_t *room, uint64_t need, uint64_t each) {
    uint64_t more = *room ? *room : 64;
    void *bigger;
    if (need <= *room) return at;
    while (more < need)
        more *= 2;
    bigger = cdp__alloc(t->os, more * each);
    if (!bigger) {
        (void)cdp__ck_none(t);
        return NULL;
    }
    if (*room) memcpy(bigger, at, (size_t)(*room * each));
    cdp__free(t->os, at);
    *room = more;
    return bigger;
}

/* Room for `bytes` bytes and a zero at the end of the texts; NULL: out of memory. */
CDP__PRIVATE char *cdp__ck_text_room(cdp__ck_table *t, uint64_t bytes) {
    char *const text = (char *)cdp__ck_room(t, t->text, &t->text_room, t->text_used + bytes + 1, 1);
    if (!text) return NULL;
    t->text = text;
    return text + t->text_used;
}

/* Stores a text; UINT64_MAX: out of memory. */
CDP__PRIVATE uint64_t cdp__ck_text(cdp__ck_table *t, const char *text, uint64_t bytes) {
    char *const to = cdp__ck_text_room(t, bytes);
    const uint64_t at = t->text_used;
    if (!to) return UINT64_MAX;
    memcpy(to, text, (size_t)bytes);
    to[bytes] = 0;
    t->text_used += bytes + 1;
    return at;
}

/* The last text of a JSON reader, decoded; UINT64_MAX: out of memory. */
CDP__PRIVATE uint64_t cdp__ck_json_text(cdp__ck_table *t, const cdp__json_reader *j) {
    char *const to = cdp__ck_text_room(t, j->length);
    const uint64_t at = t->text_used;
    uint64_t n;
    if (!to) return UINT64_MAX;
    n = cdp__json_decode(j, to);
    to[n] = 0;
    t->text_used += n + 1;
    return at;
}

CDP__PRIVATE const char *cdp__ck_name(const cdp__ck_table *t, const cdp__ck_entry *e) {
    return t->text + e->name;
}

CDP__PRIVATE const char *cdp__ck_file_name(const cdp__ck_table *t, const cdp__ck_entry *e) {
    return t->text + t->files[e->file].name;
}

CDP__PRIVATE cdp__ck_entry *cdp__ck_entry_new(cdp__ck_table *t) {
    cdp__ck_entry *const all =
        (cdp__ck_entry *)cdp__ck_room(t, t->entries, &t->room, t->count + 1, sizeof *all);
    if (!all || t->count >= UINT32_MAX / 4) return NULL;
    t->entries = all;
    memset(&all[t->count], 0, sizeof *all);
    return &all[t->count++];
}

CDP__PRIVATE cdp__ck_file *cdp__ck_file_new(cdp__ck_table *t) {
    cdp__ck_file *const all =
        (cdp__ck_file *)cdp__ck_room(t, t->files, &t->file_room, t->file_count + 1, sizeof *all);
    if (!all || t->file_count >= UINT32_MAX / 4) return NULL;
    t->files = all;
    memset(&all[t->file_count], 0, sizeof *all);
    return &all[t->file_count++];
}

CDP__PRIVATE bool cdp__ck_add_block(cdp__ck_table *t, const cdp__ck_block *from) {
    cdp__ck_block *const all = (cdp__ck_block *)cdp__ck_room(
        t, t->blocks, &t->block_room, t->block_count + 1, sizeof *all);
    if (!all) return false;
    t->blocks = all;
    all[t->block_count++] = *from;
    return true;
}

/* The number of elements of a slab, and of slabs of an entry. */
CDP__PRIVATE uint64_t cdp__ck_slab_elements(const cdp__ck_table *t, const cdp__ck_entry *e) {
    return cdp__max(t->slab / cdp__dtype_row_of(e->dtype)->bytes, 1);
}
CDP__PRIVATE uint64_t cdp__ck_slab_count(const cdp__ck_table *t, const cdp__ck_entry *e) {
    const uint64_t each = cdp__ck_slab_elements(t, e) * cdp__dtype_row_of(e->dtype)->bytes;
    return e->bytes / each + (e->bytes % each != 0);
}

/* Gives an entry room for its sums, which are 0. */
CDP__PRIVATE bool cdp__ck_sums_new(cdp__ck_table *t, cdp__ck_entry *e) {
    const uint64_t n = cdp__ck_slab_count(t, e);
    uint64_t *const all =
        (uint64_t *)cdp__ck_room(t, t->sums, &t->sum_room, t->sum_count + n, sizeof *all);
    if (!all) return false;
    t->sums = all;
    if (n) memset(all + t->sum_count, 0, (size_t)(n * sizeof *all));
    e->first_sum = t->sum_count;
    e->sums = n;
    t->sum_count += n;
    return true;
}

/* The size of an entry from dtype and shape; false: it does not fit 63 bits. */
CDP__PRIVATE bool cdp__ck_entry_bytes(
    cdp_dtype dtype, uint32_t ndim, const uint64_t *shape, uint64_t *bytes) {
    uint64_t n = cdp__dtype_row_of(dtype)->bytes;
    bool empty = false;
    uint32_t d;
    for (d = 0; d < ndim; ++d) {
        empty = empty || !shape[d];
        if (shape[d] && !cdp__mul_fits(n, shape[d], &n)) return false;
    }
    *bytes = empty ? 0 : n;
    return true;
}

CDP__PRIVATE uint64_t cdp__ck_slot(const cdp__ck_table *t, const char *name) {
    uint64_t at = cdp__mix(cdp__hash(CDP__HASH_START, name, strlen(name))) & t->mask;
    while (t->slots[at] && strcmp(cdp__ck_name(t, &t->entries[t->slots[at] - 1]), name) != 0)
        at = (at + 1) & t->mask;
    return at;
}

/* Makes the index of names; false: out of memory, or a name is there twice (*twice). */
CDP__PRIVATE bool cdp__ck_index(cdp__ck_table *t, uint64_t *twice) {
    uint64_t size = 16, i;
    *twice = UINT64_MAX;
    while (size < 2 * t->count)
        size *= 2;
    cdp__free(t->os, t->slots);
    t->slots = (uint32_t *)cdp__alloc_zero(t->os, size * sizeof *t->slots);
    if (!t->slots) return cdp__ck_none(t);
    t->mask = size - 1;
    for (i = 0; i < t->count; ++i) {
        const uint64_t at = cdp__ck_slot(t, cdp__ck_name(t, &t->entries[i]));
        if (t->slots[at]) {
            *twice = i;
            return cdp__ck_bad(t, "a name is there twice");
        }
        t->slots[at] = (uint32_t)i + 1;
    }
    return true;
}

/* NULL: there is none of that name. */
CDP__PRIVATE cdp__ck_entry *cdp__ck_look(const cdp__ck_table *t, const char *name) {
    const uint32_t at = t->slots ? t->slots[cdp__ck_slot(t, name)] : 0;
    return at ? &t->entries[at - 1] : NULL;
}

/* Whether a text is UTF-8 without control characters and may be a name. */
CDP__PRIVATE bool cdp__ck_name_fits(const char *name) {
    const uint64_t bytes = strlen(name);
    const uint8_t *at = (const uint8_t *)name, *const end = at + bytes;
    if (!bytes || bytes > CDP__CK_NAME || strcmp(name, "__metadata__") == 0) return false;
    while (at < end) {
        const bool mark = *at == '?';
        const uint32_t c = cdp__utf8_next(&at, end);
        if (c < 32 || (c == '?' && !mark)) return false;
    }
    return true;
}

/* Writes a number with at least so many digits. */
CDP__PRIVATE void cdp__ck_digits(cdp__text *t, uint64_t v, uint32_t digits) {
    uint64_t least = 10;
    for (; --digits; least *= 10)
        if (v < least) break;
    for (; digits; --digits)
        cdp__text_char(t, '0');
    cdp__text_number(t, v, false, 10);
}

/* ---- >>checkpoint/safetensors: headers of safetensors files ---------------------------------- */

/* Knows: the format of Hugging Face: the little-endian, row-major bytes of tensors behind a header
   in JSON. Promises: any bytes yield entries inside the file or a reason. */

#define CDP__CK_HEADER_MAX 100000000u /* bytes, as the format says */
#define CDP__CK_ALIGN 4096u           /* data begin at a multiple of it */

/* Writes the name of a dtype in the format: that of the table in capitals, and F8_E4M3 for f8e4m3.
   False: the format has no complex numbers. */
CDP__PRIVATE bool cdp__ck_dtype_word(cdp_dtype t, char out[16]) {
    const cdp__dtype_row *const row = cdp__dtype_row_of(t);
    const char *at = row->name;
    uint32_t n = 0;
    if (!row->bytes || row->kind == CDP__COMPLEX) return false;
    for (; *at && n < 14; ++at) {
        if (*at == 'e') out[n++] = '_';
        out[n++] = (char)(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    }
    out[n] = 0;
    return true;
}

CDP__PRIVATE cdp_dtype cdp__ck_dtype_of(const char *word) {
    char other[16];
    uint32_t i;
    for (i = 1; i < CDP_DTYPE_COUNT; ++i)
        if (cdp__ck_dtype_word((cdp_dtype)i, other) && strcmp(other, word) == 0)
            return (cdp_dtype)i;
    return CDP_DTYPE_COUNT;
}

/* "dtype" and "shape" of an entry, as both formats have them. */
CDP__PRIVATE void cdp__ck_write_type(cdp__text *t, const cdp__ck_entry *e) {
    char word[16] = "";
    uint32_t d;
    (void)cdp__ck_dtype_word(e->dtype, word);
    cdp__text_add(t, "\"dtype\":\"%s\",\"shape\":[", word);
    for (d = 0; d < e->ndim; ++d)
        cdp__text_add(t, d ? ",%llu" : "%llu", (unsigned long long)e->shape[d]);
    cdp__text_char(t, ']');
}

/* Writes the JSON of the header of file `file`; offsets count from the end of the header, and
   entries of one file are neighbours. */
CDP__PRIVATE void cdp__ck_write_header(cdp__text *t, const cdp__ck_table *table, uint32_t file) {
    uint64_t at = 0, i;
    cdp__text_add(t, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (i = 0; i < table->count; ++i) {
        const cdp__ck_entry *const e = &table->entries[i];
        if (e->file != file) continue;
        cdp__text_char(t, ',');
        cdp__json_string(t, cdp__ck_name(table, e));
        cdp__text_add(t, ":{");
        cdp__ck_write_type(t, e);
        cdp__text_add(t, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
            (unsigned long long)(at + e->bytes));
        at += e->bytes;
    }
    cdp__text_char(t, '}');
}

/* Length of the header of a file with the 8 bytes of its own length, padded. */
CDP__PRIVATE uint64_t cdp__ck_header_bytes(const cdp__ck_table *table, uint32_t file) {
    cdp__text t = cdp__text_of(NULL, 0);
    cdp__ck_write_header(&t, table, file);
    return (t.used + 8 + CDP__CK_ALIGN - 1) / CDP__CK_ALIGN * CDP__CK_ALIGN;
}

/* Fills `to`, of cdp__ck_header_bytes() bytes. */
CDP__PRIVATE void cdp__ck_fill_header(
    const cdp__ck_table *table, uint32_t file, uint8_t *to, uint64_t bytes) {
    cdp__text t = cdp__text_of((char *)to + 8, bytes - 8);
    cdp__ck_write_header(&t, table, file);
    cdp__put_u64(to, bytes - 8);
    memset(to + 8 + t.used, ' ', (size_t)(bytes - 8 - t.used));
}

/* ---- reading ---- */

/* Skips the value that begins with a piece of this kind. */
CDP__PRIVATE bool cdp__ck_skip(cdp__ck_table *t, cdp__json_reader *j, cdp__json_kind kind) {
    uint32_t depth = 0;
    for (;;) {
        if (kind == CDP__JSON_BAD || kind == CDP__JSON_END)
            return cdp__ck_bad(t, j->why ? j->why : "it ends too early");
        if (kind == CDP__JSON_DICT || kind == CDP__JSON_LIST) ++depth;
        if (kind == CDP__JSON_CLOSE) --depth;
        if (!depth && kind != CDP__JSON_KEY) return true;
        kind = cdp__json_next(j);
    }
}

/* Whether the last key or text is this one. */
CDP__PRIVATE bool cdp__ck_is(const cdp__json_reader *j, const char *word) {
    return !j->escapes && j->length == strlen(word)
        && memcmp(j->text, word, (size_t)j->length) == 0;
}

/* Takes a list of at most `max` whole numbers; *count: how many. */
CDP__PRIVATE bool cdp__ck_numbers(
    cdp__ck_table *t, cdp__json_reader *j, uint64_t *out, uint32_t max, uint32_t *count) {
    cdp__json_kind kind = cdp__json_next(j);
    *count = 0;
    if (kind != CDP__JSON_LIST) return cdp__ck_bad(t, "a list of numbers is expected");
    while ((kind = cdp__json_next(j)) == CDP__JSON_WHOLE) {
        if (j->whole < 0) return cdp__ck_bad(t, "a number is negative");
        if (*count == max) return cdp__ck_bad(t, "a list of numbers is too long");
        out[(*count)++] = (uint64_t)j->whole;
    }
    return kind == CDP__JSON_CLOSE || cdp__ck_bad(t, "a list of numbers has something else in it");
}

CDP__PRIVATE bool cdp__ck_number(cdp__ck_table *t, cdp__json_reader *j, uint64_t *out) {
    if (cdp__json_next(j) != CDP__JSON_WHOLE || j->whole < 0)
        return cdp__ck_bad(t, "a number is expected");
    *out = (uint64_t)j->whole;
    return true;
}

CDP__PRIVATE bool cdp__ck_read_dtype(cdp__ck_table *t, cdp__json_reader *j, cdp_dtype *out) {
    char word[16];
    if (cdp__json_next(j) != CDP__JSON_TEXT) return cdp__ck_bad(t, "a dtype is expected");
    if (j->escapes || j->length >= sizeof word) return cdp__ck_bad(t, "a dtype is no word");
    memcpy(word, j->text, (size_t)j->length);
    word[j->length] = 0;
    *out = cdp__ck_dtype_of(word);
    if (*out != CDP_DTYPE_COUNT) return true;
    (void)cdp__ck_bad(t, "a tensor has a dtype that is not known here");
    t->status = CDP_ERR_UNSUPPORTED;
    return false;
}

/* Takes the name of an entry, which is the last text. */
CDP__PRIVATE bool cdp__ck_read_name(cdp__ck_table *t, cdp__json_reader *j, cdp__ck_entry *e) {
    if (j->length > 8 * CDP__CK_NAME) return cdp__ck_bad(t, "a name is too long");
    e->name = cdp__ck_json_text(t, j);
    if (e->name == UINT64_MAX) return false;
    return cdp__ck_name_fits(t->text + e->name)
        || cdp__ck_bad(t, "a name is empty, too long or not UTF-8");
}

CDP__PRIVATE bool cdp__ck_add_entry(cdp__ck_table *t, const cdp__ck_entry *from) {
    cdp__ck_entry *const e = cdp__ck_entry_new(t);
    if (!e) return cdp__ck_none(t);
    *e = *from;
    return true;
}

/* Takes what is behind the name of a tensor. */
CDP__PRIVATE bool cdp__ck_read_tensor(
    cdp__ck_table *t, cdp__json_reader *j, cdp__ck_entry *e, uint64_t data_bytes) {
    uint64_t offsets[2] = {0, 0};
    uint32_t have = 0, n;
    cdp__json_kind kind = cdp__json_next(j);
    if (kind != CDP__JSON_DICT) return cdp__ck_bad(t, "a tensor is no dict");
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        bool ok;
        if (cdp__ck_is(j, "dtype")) {
            have |= 1;
            ok = cdp__ck_read_dtype(t, j, &e->dtype);
        } else if (cdp__ck_is(j, "shape")) {
            have |= 2;
            ok = cdp__ck_numbers(t, j, e->shape, CDP_TENSOR_DIMS, &e->ndim);
        } else if (cdp__ck_is(j, "data_offsets")) {
            have |= 4;
            ok = cdp__ck_numbers(t, j, offsets, 2, &n);
            if (ok && n != 2) ok = cdp__ck_bad(t, "data_offsets are not two numbers");
        } else
            ok = cdp__ck_skip(t, j, cdp__json_next(j));
        if (!ok) return false;
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j->why);
    if (have != 7) return cdp__ck_bad(t, "a tensor lacks dtype, shape or data_offsets");
    if (!cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &e->bytes))
        return cdp__ck_bad(t, "a tensor is too large");
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes || offsets[1] - offsets[0] != e->bytes)
        return cdp__ck_bad(
            t, "the offsets of a tensor are not those of its shape, or not in the file");
    e->at = t->files[e->file].data_at + offsets[0];
    return true;
}

/* Adds the tensors of a header, the last file of the table: `json` is what follows the 8 bytes of
   its length, data_bytes how many bytes follow that. */
CDP__PRIVATE bool cdp__ck_read_header(
    cdp__ck_table *t, const void *json, uint64_t bytes, uint64_t data_bytes) {
    cdp__json_reader j = cdp__json_open(json, bytes);
    uint64_t sum = 0;
    cdp__json_kind kind = cdp__json_next(&j);
    if (kind != CDP__JSON_DICT) return cdp__ck_bad(t, "the header is no JSON dict");
    while ((kind = cdp__json_next(&j)) == CDP__JSON_KEY) {
        cdp__ck_entry e;
        if (cdp__ck_is(&j, "__metadata__")) {
            if (!cdp__ck_skip(t, &j, cdp__json_next(&j))) return false;
            continue;
        }
        memset(&e, 0, sizeof e);
        e.file = (uint32_t)t->file_count - 1;
        if (!cdp__ck_read_name(t, &j, &e) || !cdp__ck_read_tensor(t, &j, &e, data_bytes)
            || !cdp__ck_add_entry(t, &e))
            return false;
        sum += e.bytes; /* each is at most data_bytes, and there are fewer than 2^32 */
        if (sum > data_bytes) return cdp__ck_bad(t, "tensors overlap");
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j.why);
    if (cdp__json_next(&j) != CDP__JSON_END) return cdp__ck_bad(t, j.why);
    return sum == data_bytes || cdp__ck_bad(t, "bytes of the file belong to no tensor");
}

/* ---- >>checkpoint/description: checkpoint.json, without which a checkpoint does not exist ---- */

/* Knows: the keys of the file. Promises: any bytes yield a table or a reason; a file that was cut
   or changed is noticed by the sum at its end. */

#define CDP__CK_FORMAT "cdp checkpoint 1"
#define CDP__CK_CHECK ",\"check\":\"" /* before the sum of all bytes that stand before it */

CDP__PRIVATE void cdp__ck_hex(cdp__text *t, uint64_t v) {
    uint32_t shift;
    for (shift = 64; shift; shift -= 4)
        cdp__text_char(t, "0123456789abcdef"[v >> (shift - 4) & 15]);
}

/* How a tensor was cut, for people: "S0,R on 2x4", or "S0 on 2 of 60" where files have another
   shape than what was cut. Kept as text, because the program may change its items while they are
   written. */
CDP__PRIVATE bool cdp__ck_keep_layout(cdp__ck_table *t, cdp__ck_entry *e, const cdp_layout *l) {
    const cdp_mesh_desc *const m = l->mesh ? cdp_mesh_desc_of(l->mesh) : NULL;
    char places[256], all[256 + 16 * CDP_MESH_DIMS + 24 * CDP_TENSOR_DIMS];
    cdp__text text = cdp__text_of(all, sizeof all);
    uint32_t d;
    if (!m) return true;
    (void)cdp_layout_text(l, places, sizeof places);
    cdp__text_add(&text, "%s on ", places);
    for (d = 0; d < m->ndim; ++d)
        cdp__text_add(&text, d ? "x%u" : "%u", (unsigned)m->shape[d]);
    if (l->ndim != e->ndim || memcmp(l->shape, e->shape, e->ndim * sizeof *e->shape) != 0)
        for (d = 0; d < l->ndim; ++d)
            cdp__text_add(&text, d ? "x%llu" : " of %llu", (unsigned long long)l->shape[d]);
    (void)cdp__text_end(&text);
    e->layout = cdp__ck_text(t, all, strlen(all));
    return e->layout != UINT64_MAX;
}

CDP__PRIVATE void cdp__ck_write_entry(
    cdp__text *t, const cdp__ck_table *table, const cdp__ck_entry *e) {
    uint64_t i;
    cdp__text_add(t, "{\"name\":");
    cdp__json_string(t, cdp__ck_name(table, e));
    cdp__text_char(t, ',');
    cdp__ck_write_type(t, e);
    cdp__text_add(t, ",\"file\":%u,\"offset\":%llu", (unsigned)e->file, (unsigned long long)e->at);
    if (e->layout) cdp__text_add(t, ",\"layout\":\"%s\"", table->text + e->layout);
    cdp__text_add(t, ",\"sums\":\"");
    for (i = 0; i < e->sums; ++i)
        cdp__ck_hex(t, table->sums[e->first_sum + i]);
    cdp__text_add(t, "\"}");
}

/* Writes everything but the sum at the end. */
CDP__PRIVATE void cdp__ck_write_body(cdp__text *t, const cdp__ck_table *table) {
    uint64_t i, blobs;
    cdp__text_add(t, "{\"format\":\"" CDP__CK_FORMAT "\",\"step\":%llu,\"slab_bytes\":%llu",
        (unsigned long long)table->step, (unsigned long long)table->slab);
    cdp__text_add(t, ",\"files\":[");
    for (i = 0; i < table->file_count; ++i) {
        cdp__text_add(t, i ? ",{\"name\":" : "{\"name\":");
        cdp__json_string(t, table->text + table->files[i].name);
        cdp__text_add(t, ",\"bytes\":%llu}", (unsigned long long)table->files[i].bytes);
    }
    for (blobs = 0; blobs < 2; ++blobs) {
        bool first = true;
        cdp__text_add(t, blobs ? "],\n\"blobs\":[" : "],\n\"tensors\":[");
        for (i = 0; i < table->count; ++i) {
            if (table->entries[i].blob != (blobs != 0)) continue;
            cdp__text_add(t, first ? "\n" : ",\n");
            first = false;
            cdp__ck_write_entry(t, table, &table->entries[i]);
        }
    }
    cdp__text_add(t, "]\n");
}

/* ---- reading ---- */

CDP__PRIVATE bool cdp__ck_read_file(cdp__ck_table *t, cdp__json_reader *j) {
    cdp__ck_file *const f = cdp__ck_file_new(t);
    bool named = false;
    cdp__json_kind kind;
    if (!f) return cdp__ck_none(t);
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        if (cdp__ck_is(j, "name")) {
            if (cdp__json_next(j) != CDP__JSON_TEXT) return cdp__ck_bad(t, "a file has no name");
            f->name = cdp__ck_json_text(t, j);
            if (f->name == UINT64_MAX) return false;
            named = cdp__ck_name_fits(t->text + f->name) && !strpbrk(t->text + f->name, "/\\:");
        } else if (cdp__ck_is(j, "bytes")) {
            if (!cdp__ck_number(t, j, &f->bytes)) return false;
        } else if (!cdp__ck_skip(t, j, cdp__json_next(j)))
            return false;
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j->why);
    return named || cdp__ck_bad(t, "a file has no name, or one with a path");
}

/* Reads the sums of an entry, whose size is known. */
CDP__PRIVATE bool cdp__ck_read_sums(
    cdp__ck_table *t, cdp__ck_entry *e, const uint8_t *hex, uint64_t digits) {
    uint64_t i;
    if (digits != 16 * cdp__ck_slab_count(t, e)) return cdp__ck_bad(t, "sums are missing");
    if (!cdp__ck_sums_new(t, e)) return false;
    for (i = 0; i < digits; ++i) {
        const int digit = cdp__hex_digit(hex[i]);
        uint64_t *const sum = &t->sums[e->first_sum + i / 16];
        if (digit < 0) return cdp__ck_bad(t, "a sum is no number");
        *sum = *sum << 4 | (uint64_t)digit;
    }
    return true;
}

CDP__PRIVATE bool cdp__ck_read_entry(cdp__ck_table *t, cdp__json_reader *j, cdp__ck_entry *e) {
    const uint8_t *sums = NULL;
    uint64_t digits = 0, file = UINT64_MAX;
    uint32_t have = 0;
    cdp__json_kind kind;
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        bool ok = true;
        if (cdp__ck_is(j, "name")) {
            have |= 1;
            ok = cdp__json_next(j) == CDP__JSON_TEXT ? cdp__ck_read_name(t, j, e)
                                                     : cdp__ck_bad(t, "an entry has no name");
        } else if (cdp__ck_is(j, "dtype")) {
            have |= 2;
            ok = cdp__ck_read_dtype(t, j, &e->dtype);
        } else if (cdp__ck_is(j, "shape")) {
            have |= 4;
            ok = cdp__ck_numbers(t, j, e->shape, CDP_TENSOR_DIMS, &e->ndim);
        } else if (cdp__ck_is(j, "file")) {
            ok = cdp__ck_number(t, j, &file);
        } else if (cdp__ck_is(j, "offset")) {
            have |= 8;
            ok = cdp__ck_number(t, j, &e->at);
        } else if (cdp__ck_is(j, "layout")) {
            ok = cdp__json_next(j) == CDP__JSON_TEXT || cdp__ck_bad(t, "a layout is no text");
            if (ok) e->layout = cdp__ck_json_text(t, j);
            ok = ok && e->layout != UINT64_MAX;
        } else if (cdp__ck_is(j, "sums")) {
            ok = cdp__json_next(j) == CDP__JSON_TEXT || cdp__ck_bad(t, "sums are no text");
            sums = j->text;
            digits = j->length;
        } else
            ok = cdp__ck_skip(t, j, cdp__json_next(j));
        if (!ok) return false;
    }
    if (kind != CDP__JSON_CLOSE) return cdp__ck_bad(t, j->why);
    if (have != 15 || !sums || file >= t->file_count)
        return cdp__ck_bad(t, "an entry lacks name, dtype, shape, file, offset or sums");
    if (e->blob && e->dtype != CDP_DTYPE_U8) return cdp__ck_bad(t, "a blob is not U8");
    if (!cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &e->bytes))
        return cdp__ck_bad(t, "a tensor is too large");
    e->file = (uint32_t)file;
    if (e->at > t->files[file].bytes || e->bytes > t->files[file].bytes - e->at)
        return cdp__ck_bad(t, "a tensor is not in its file");
    return cdp__ck_read_sums(t, e, sums, digits);
}

/* Takes a list of dicts: files, tensors or blobs. */
CDP__PRIVATE bool cdp__ck_read_list(cdp__ck_table *t, cdp__json_reader *j, bool files, bool blobs) {
    cdp__json_kind kind = cdp__json_next(j);
    if (kind != CDP__JSON_LIST) return cdp__ck_bad(t, "a list is expected");
    while ((kind = cdp__json_next(j)) == CDP__JSON_DICT) {
        cdp__ck_entry e;
        memset(&e, 0, sizeof e);
        e.blob = blobs;
        if (files ? !cdp__ck_read_file(t, j)
                  : !cdp__ck_read_entry(t, j, &e) || !cdp__ck_add_entry(t, &e))
            return false;
    }
    return kind == CDP__JSON_CLOSE || cdp__ck_bad(t, j->why ? j->why : "a dict is expected");
}

CDP__PRIVATE bool cdp__ck_read_body(cdp__ck_table *t, cdp__json_reader *j) {
    cdp__json_kind kind = cdp__json_next(j);
    bool known = false;
    if (kind != CDP__JSON_DICT) return cdp__ck_bad(t, "it is no JSON dict");
    while ((kind = cdp__json_next(j)) == CDP__JSON_KEY) {
        bool ok;
        if (cdp__ck_is(j, "format")) {
            known = cdp__json_next(j) == CDP__JSON_TEXT && cdp__ck_is(j, CDP__CK_FORMAT);
            ok = known || cdp__ck_bad(t, "its format is not \"" CDP__CK_FORMAT "\"");
        } else if (cdp__ck_is(j, "step")) {
            ok = cdp__ck_number(t, j, &t->step);
        } else if (cdp__ck_is(j, "slab_bytes")) {
            ok = cdp__ck_number(t, j, &t->slab);
            if (ok && (t->slab < 8 || t->slab > UINT64_MAX / 4))
                ok = cdp__ck_bad(t, "slab_bytes is out of range");
            if (ok && t->count) ok = cdp__ck_bad(t, "slab_bytes is behind tensors");
        } else if (cdp__ck_is(j, "files") || cdp__ck_is(j, "tensors") || cdp__ck_is(j, "blobs")) {
            const bool files = cdp__ck_is(j, "files"), blobs = cdp__ck_is(j, "blobs");
            ok = cdp__ck_read_list(t, j, files, blobs);
        } else
            ok = cdp__ck_skip(t, j, cdp__json_next(j));
        if (!ok) return false;
    }
    if (kind != CDP__JSON_CLOSE || cdp__json_next(j) != CDP__JSON_END)
        return cdp__ck_bad(t, j->why);
    return known || cdp__ck_bad(t, "its format is not \"" CDP__CK_FORMAT "\"");
}

/* Whether the sum at the end of the file is that of the bytes before. */
CDP__PRIVATE bool cdp__ck_checked(const char *data, uint64_t bytes) {
    const uint64_t mark = sizeof CDP__CK_CHECK - 1, tail = mark + 16 + 3; /* "}\n and its quote */
    char want[20];
    cdp__text t = cdp__text_of(want, sizeof want);
    if (bytes < tail || memcmp(data + bytes - tail, CDP__CK_CHECK, (size_t)mark) != 0) return false;
    cdp__ck_hex(&t, cdp__hash(CDP__HASH_START, data, bytes - tail));
    return memcmp(data + bytes - tail + mark, want, 16) == 0;
}

/* Reads a whole checkpoint.json into an empty table. */
CDP__PRIVATE bool cdp__ck_read_description(cdp__ck_table *t, const char *data, uint64_t bytes) {
    cdp__json_reader j = cdp__json_open(data, bytes);
    if (!cdp__ck_checked(data, bytes))
        return cdp__ck_bad(t, "checkpoint.json is not whole, or was changed");
    return cdp__ck_read_body(t, &j);
}

/* ---- >>checkpoint/plan: which item stands where in which file -------------------------------- */

/* Knows: names, dtypes and shapes of items. Promises: every rank computes the same table alone;
   elements are aligned to their size. */

#define CDP__CK_FILE_BYTES 5000000000u

CDP__PRIVATE cdp_dtype cdp__ck_item_dtype(const cdp_item *i) {
    return i->tensor.layout.dtype ? i->tensor.layout.dtype : CDP_DTYPE_F32;
}
CDP__PRIVATE const char *cdp__ck_item_file(const cdp_item *i) {
    return i->file ? i->file : "model";
}

/* The shape of an item in files. */
CDP__PRIVATE uint32_t cdp__ck_item_shape(const cdp_item *i, const uint64_t **shape) {
    *shape = i->ndim ? i->shape : i->tensor.layout.shape;
    return i->ndim ? i->ndim : i->tensor.layout.ndim;
}

CDP__PRIVATE cdp_status cdp__ck_item_layout(const cdp_item *i) {
    const cdp_layout *const l = &i->tensor.layout;
    uint64_t all = 1;
    uint32_t d;
    for (d = 0; i->part && d < l->ndim; ++d)
        all *= l->shape[d];
    if (i->part
        && (l->mesh || i->count > all || i->first > all - i->count
            || i->copy >= cdp__max(i->copies, 1)))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s': elements %llu to %llu of %llu, copy %u of %u: a part must be in "
            "the tensor, which has no mesh",
            i->name, (unsigned long long)i->first, (unsigned long long)(i->first + i->count),
            (unsigned long long)all, (unsigned)i->copy, (unsigned)cdp__max(i->copies, 1));
    if (!l->mesh) return CDP_OK;
    if (cdp_layout_check(l) != CDP_OK) return cdp_last_error()->status;
    for (d = 0; d < cdp_mesh_desc_of(l->mesh)->ndim; ++d)
        if (l->place[d].kind == CDP_PLACE_PARTIAL)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt: item '%s' is PARTIAL; redistribute it first", i->name);
    return CDP_OK;
}

/* Whether an item can be saved and loaded. */
CDP__PRIVATE cdp_status cdp__ck_item_check(const cdp_item *i, uint32_t index) {
    const uint64_t *shape;
    const uint32_t ndim = cdp__ck_item_shape(i, &shape), flat = i->tensor.layout.ndim;
    const char *const file = cdp__ck_item_file(i);
    uint64_t bytes, view;
    char word[16];
    if (!i->name || !cdp__ck_name_fits(i->name))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: items[%u].name is not 1 to %u bytes of UTF-8 without control characters",
            (unsigned)index, CDP__CK_NAME);
    if (!cdp__ck_name_fits(file) || strlen(file) > 100 || strpbrk(file, "/\\:")
        || strcmp(file, "blobs") == 0)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s': file '%s' cannot be part of a file name", i->name, file);
    if (!cdp__ck_dtype_word(cdp__ck_item_dtype(i), word))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt: item '%s' is %s, which safetensors does not have; save it as pairs of "
            "floats",
            i->name, cdp__dtype_row_of(cdp__ck_item_dtype(i))->name);
    if (ndim > CDP_TENSOR_DIMS || flat > CDP_TENSOR_DIMS
        || !cdp__ck_entry_bytes(cdp__ck_item_dtype(i), ndim, shape, &bytes)
        || !cdp__ck_entry_bytes(cdp__ck_item_dtype(i), flat, i->tensor.layout.shape, &view)
        || bytes != view)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s': its shape has another number of elements than its tensor, more "
            "than %u dimensions, or more than 63 bits",
            i->name, CDP_TENSOR_DIMS);
    return cdp__ck_item_layout(i);
}

/* Adds an item to the table, without a place. */
CDP__PRIVATE bool cdp__ck_plan_item(
    cdp__ck_table *t, const cdp_item *i, uint32_t index, uint64_t begin) {
    cdp__ck_entry e;
    const uint64_t *shape;
    memset(&e, 0, sizeof e);
    e.begin = begin;
    e.ndim = cdp__ck_item_shape(i, &shape);
    memcpy(e.shape, shape, e.ndim * sizeof *shape);
    e.dtype = cdp__ck_item_dtype(i);
    e.item = index;
    if (!cdp__ck_entry_bytes(e.dtype, e.ndim, e.shape, &e.bytes)) return false;
    e.name = cdp__ck_text(t, i->name, strlen(i->name));
    return e.name != UINT64_MAX && cdp__ck_sums_new(t, &e) && cdp__ck_add_entry(t, &e);
}

/* Begins a file: its name is set when it is known how many there are. */
CDP__PRIVATE bool cdp__ck_plan_file(cdp__ck_table *t, cdp__ck_entry *e) {
    if (!cdp__ck_file_new(t)) return cdp__ck_none(t);
    e->file = (uint32_t)t->file_count - 1;
    return true;
}

/* Names the files from `first` on: "model-00001-of-00003.safetensors". */
CDP__PRIVATE bool cdp__ck_plan_names(cdp__ck_table *t, uint64_t first, const char *begin) {
    const uint64_t count = t->file_count - first;
    uint64_t i;
    for (i = 0; i < count; ++i) {
        char name[160];
        cdp__text n = cdp__text_of(name, sizeof name);
        cdp__text_add(&n, "%s-", begin);
        cdp__ck_digits(&n, i + 1, 5);
        cdp__text_add(&n, "-of-");
        cdp__ck_digits(&n, count, 5);
        cdp__text_add(&n, ".safetensors");
        (void)cdp__text_end(&n);
        t->files[first + i].name = cdp__ck_text(t, name, strlen(name));
        if (t->files[first + i].name == UINT64_MAX) return false;
    }
    return true;
}

/* Adds the items whose files begin like those of item `like`: elements of 8 bytes first. */
CDP__PRIVATE bool cdp__ck_plan_group(
    cdp__ck_table *t, const cdp_ckpt_desc *d, uint32_t like, uint64_t file_bytes) {
    const char *const begin = cdp__ck_item_file(&d->items[like]);
    const uint64_t first = t->file_count, text = cdp__ck_text(t, begin, strlen(begin));
    uint64_t size, used = 0;
    if (text == UINT64_MAX) return false;
    for (size = 8; size; size /= 2) {
        uint32_t i;
        for (i = like; i < d->item_count; ++i) {
            const cdp_item *const item = &d->items[i];
            cdp__ck_entry *e;
            if (cdp__dtype_row_of(cdp__ck_item_dtype(item))->bytes != size
                || strcmp(cdp__ck_item_file(item), begin) != 0)
                continue;
            if (!cdp__ck_plan_item(t, item, i, text)) return false;
            e = &t->entries[t->count - 1];
            if (t->file_count == first
                || (used && e->bytes > file_bytes - cdp__min(used, file_bytes))) {
                if (!cdp__ck_plan_file(t, e)) return false;
                used = 0;
            }
            e->file = (uint32_t)t->file_count - 1;
            e->at = used;
            used += e->bytes;
            t->files[e->file].bytes = used;
        }
    }
    return cdp__ck_plan_names(t, first, begin);
}

/* Sets lengths of headers, which follow from the entries, and offsets in files. */
CDP__PRIVATE void cdp__ck_plan_offsets(cdp__ck_table *t, uint64_t first_file) {
    uint64_t i;
    for (i = first_file; i < t->file_count; ++i) {
        t->files[i].data_at = cdp__ck_header_bytes(t, (uint32_t)i);
        t->files[i].bytes += t->files[i].data_at;
    }
    for (i = 0; i < t->count; ++i)
        if (t->entries[i].file >= first_file)
            t->entries[i].at += t->files[t->entries[i].file].data_at;
}

/* The first item whose files have the same begin. */
CDP__PRIVATE uint32_t cdp__ck_plan_first(const cdp_ckpt_desc *d, uint32_t index) {
    uint32_t i = 0;
    while (strcmp(cdp__ck_item_file(&d->items[i]), cdp__ck_item_file(&d->items[index])) != 0)
        ++i;
    return i;
}

/* Makes the table of all items. */
CDP__PRIVATE cdp_status cdp__ck_plan(cdp__ck_table *t, const cdp_ckpt_desc *d) {
    const uint64_t file_bytes = d->file_bytes ? d->file_bytes : CDP__CK_FILE_BYTES;
    uint64_t twice;
    uint32_t i;
    for (i = 0; i < d->item_count; ++i)
        if (cdp__ck_item_check(&d->items[i], i) != CDP_OK) return cdp_last_error()->status;
    for (i = 0; i < d->item_count; ++i)
        if (cdp__ck_plan_first(d, i) == i && !cdp__ck_plan_group(t, d, i, file_bytes))
            return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for the plan");
    cdp__ck_plan_offsets(t, 0);
    if (cdp__ck_index(t, &twice)) return CDP_OK;
    if (twice == UINT64_MAX)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for the plan");
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "cdp_ckpt: two items have the name '%s'",
        cdp__ck_name(t, &t->entries[twice]));
}

/* What was planned is too much for a header. */
CDP__PRIVATE cdp_status cdp__ck_plan_limits(const cdp__ck_table *t) {
    uint64_t i;
    for (i = 0; i < t->file_count; ++i)
        if (t->files[i].data_at > CDP__CK_HEADER_MAX)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt: the header of %s has %llu bytes, at most %u are allowed; make "
                "file_bytes smaller",
                t->text + t->files[i].name, (unsigned long long)t->files[i].data_at,
                CDP__CK_HEADER_MAX);
    return CDP_OK;
}

/* ---- >>checkpoint/disk: files and folders ---------------------------------------------------- */

/* Knows: files of a cdp_os. Promises: nothing that was reported as written is left to be written;
   a file gets its name only after its bytes are on disk. Functions return 0 or a positive errno. */

#define CDP__CK_PATH 1200u         /* room of a path */
#define CDP__CK_PATH_MAX 512u      /* longest desc.path, so that file names fit behind it */
#define CDP__CK_AT_ONCE (8u << 20) /* bytes between two looks at who waits */
#define CDP__CK_CALL (512u << 10)  /* bytes of one call: they stay in the cache for their sum */

/* What is counted while a checkpoint is saved or loaded. */
typedef struct cdp__ck_disk {
    const cdp_os *os;
    bool no_sync, no_rename;
    uint64_t writes, reads, read_bytes;
} cdp__ck_disk;

CDP__PRIVATE void cdp__ck_path(char out[CDP__CK_PATH], const char *folder, const char *name) {
    (void)cdp__format(out, CDP__CK_PATH, "%s/%s", folder, name);
}

CDP__PRIVATE cdp_status cdp__ck_io(int32_t err, const char *what, const char *path) {
    return cdp_error_set(CDP_ERR_IO, -1, err, "cdp_ckpt: %s %s", what, path);
}

CDP__PRIVATE int32_t cdp__ck_open_file(
    const cdp__ck_disk *d, const char *path, uint32_t how, int32_t *fd) {
    *fd = d->os->files.open_file(d->os->user, path, how);
    return *fd < 0 ? -*fd : 0;
}

/* Keeps the first error. */
CDP__PRIVATE void cdp__ck_close_file(const cdp__ck_disk *d, int32_t fd, int32_t *err) {
    const int32_t closed = fd >= 0 ? d->os->files.close_file(d->os->user, fd) : 0;
    if (closed < 0 && !*err) *err = -closed;
}

CDP__PRIVATE int32_t cdp__ck_write(
    cdp__ck_disk *d, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    const uint8_t *data = (const uint8_t *)from;
    while (bytes) {
        const int64_t n =
            d->os->files.write_at(d->os->user, fd, at, data, cdp__min(bytes, CDP__CK_CALL));
        ++d->writes;
        if (n <= 0) return n ? (int32_t)-n : EIO;
        at += (uint64_t)n;
        data += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* EBADMSG: the file ends before. */
CDP__PRIVATE int32_t cdp__ck_read(
    cdp__ck_disk *d, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    uint8_t *data = (uint8_t *)to;
    while (bytes) {
        const int64_t n =
            d->os->files.read_at(d->os->user, fd, at, data, cdp__min(bytes, CDP__CK_CALL));
        ++d->reads;
        if (n <= 0) return n ? (int32_t)-n : EBADMSG;
        d->read_bytes += (uint64_t)n;
        at += (uint64_t)n;
        data += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* A failed sync is final: what it lost is not known, and a second one may report success. */
CDP__PRIVATE int32_t cdp__ck_sync(const cdp__ck_disk *d, int32_t fd) {
    const int32_t r = d->no_sync ? 0 : d->os->files.sync_file(d->os->user, fd);
    return r < 0 ? -r : 0;
}

CDP__PRIVATE int32_t cdp__ck_sync_folder(const cdp__ck_disk *d, const char *path) {
    const int32_t r = d->no_sync ? 0 : d->os->files.sync_folder(d->os->user, path);
    return r < 0 ? -r : 0;
}

/* Writes a new file of `length` bytes that begins with these; `sync`: nothing is written to it
   later on. */
CDP__PRIVATE int32_t cdp__ck_write_file(cdp__ck_disk *d, const char *path, const void *data,
    uint64_t bytes, uint64_t length, bool sync) {
    int32_t fd,
        err = cdp__ck_open_file(d, path, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY, &fd);
    if (err) return err;
    if (length > bytes) err = -d->os->files.cut_file(d->os->user, fd, length);
    if (!err) err = cdp__ck_write(d, fd, 0, data, bytes);
    if (!err && sync) err = cdp__ck_sync(d, fd);
    cdp__ck_close_file(d, fd, &err);
    return err;
}

CDP__PRIVATE int32_t cdp__ck_copy_bytes(cdp__ck_disk *d, int32_t from, int32_t to, uint64_t bytes) {
    uint8_t *const buffer = (uint8_t *)cdp__alloc(d->os, CDP__CK_CALL);
    int32_t err = buffer ? 0 : ENOMEM;
    uint64_t at, n;
    for (at = 0; !err && at < bytes; at += n) {
        n = cdp__min(bytes - at, CDP__CK_CALL);
        err = cdp__ck_read(d, from, at, buffer, n);
        if (!err) err = cdp__ck_write(d, to, at, buffer, n);
    }
    cdp__free(d->os, buffer);
    return err;
}

/* Gives a file of `bytes` bytes a second name; where that does not work, copies it, unsynced.
   `held`: it is open for reading, and may have lost its name (-1: it is not). */
CDP__PRIVATE int32_t cdp__ck_link_file(
    cdp__ck_disk *d, const char *from, const char *to, uint64_t bytes, int32_t held) {
    const cdp_os_files *const f = &d->os->files;
    int32_t in = held, out = -1, err = 0;
    if (f->link_file && f->link_file(d->os->user, from, to) == 0) return 0;
    /* a server may have made the link, and its answer is lost: to empty `to` would empty `from` */
    if (f->link_file) err = -f->remove_file(d->os->user, to);
    if (err && err != ENOENT) return err;
    err = held < 0 ? cdp__ck_open_file(d, from, 0, &in) : 0;
    if (err) return err;
    err = cdp__ck_open_file(d, to, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY, &out);
    if (!err) err = cdp__ck_copy_bytes(d, in, out, bytes);
    cdp__ck_close_file(d, out, &err);
    if (held < 0) cdp__ck_close_file(d, in, &err);
    return err;
}

/* Puts a file into its place in a folder: readers see the old one, or the whole new one (without
   rename: or a part of it). A power cut may leave either, or one without bytes. */
CDP__PRIVATE int32_t cdp__ck_place_file(
    cdp__ck_disk *d, const char *folder, const char *name, const void *data, uint64_t bytes) {
    char path[CDP__CK_PATH], other[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(path, folder, name);
    if (d->no_rename) return cdp__ck_write_file(d, path, data, bytes, bytes, false);
    (void)cdp__format(other, sizeof other, "%s.tmp", path);
    err = cdp__ck_write_file(d, other, data, bytes, bytes, false);
    return err ? err : -d->os->files.rename_file(d->os->user, other, path);
}

/* Reads a whole file of at most `max` bytes into memory of the os; there is a zero behind it. */
CDP__PRIVATE int32_t cdp__ck_read_whole(
    cdp__ck_disk *d, const char *path, uint64_t max, char **data, uint64_t *bytes) {
    cdp_file_info info;
    int32_t fd, err = cdp__ck_open_file(d, path, 0, &fd);
    *data = NULL;
    if (err) return err;
    err = -d->os->files.file_info(d->os->user, fd, &info);
    if (!err && (!info.regular || info.bytes > max)) err = EBADMSG;
    if (!err) {
        *bytes = info.bytes;
        *data = (char *)cdp__alloc(d->os, info.bytes + 1);
        if (!*data) err = ENOMEM;
    }
    if (!err) err = cdp__ck_read(d, fd, 0, *data, *bytes);
    if (!err) (*data)[*bytes] = 0;
    cdp__ck_close_file(d, fd, &err);
    if (err) {
        cdp__free(d->os, *data);
        *data = NULL;
    }
    return err;
}

/* ---- >>checkpoint/steps: the steps in a folder ----------------------------------------------- */

/* Knows: names of folders: "step-00000123" is a checkpoint if it has a valid checkpoint.json,
   "step-00000123.tmp-" with a number was never finished, "step-00000123.tmp-swept" was one that is
   not kept. Promises: nothing but such folders, and files in them, is removed. */

#define CDP__CK_DESCRIPTION "checkpoint.json"
#define CDP__CK_BLOBS "blobs.safetensors"
#define CDP__CK_DESCRIPTION_MAX (1u << 30) /* bytes */
#define CDP__CK_SWEPT_END ".tmp-swept"

CDP__PRIVATE void cdp__ck_step_name(char out[64], uint64_t step) {
    cdp__text t = cdp__text_of(out, 64);
    cdp__text_add(&t, "step-");
    cdp__ck_digits(&t, step, 8);
    (void)cdp__text_end(&t);
}

/* What a name in the folder is. */
typedef enum cdp__ck_kind {
    CDP__CK_OTHER,
    CDP__CK_STEP,
    CDP__CK_SWEPT,
    CDP__CK_LEFTOVER
} cdp__ck_kind;

CDP__PRIVATE cdp__ck_kind cdp__ck_kind_of(const char *name, uint64_t *step) {
    char own[64];
    const char *at = name + 5;
    *step = 0;
    if (strncmp(name, "step-", 5) != 0) return CDP__CK_OTHER;
    for (; *at >= '0' && *at <= '9' && *step < UINT64_MAX / 20; ++at)
        *step = *step * 10 + (uint64_t)(*at - '0');
    cdp__ck_step_name(own, *step);
    if (strncmp(own, name, strlen(own)) != 0 || (uint64_t)(at - name) != strlen(own))
        return CDP__CK_OTHER;
    if (!*at) return CDP__CK_STEP;
    if (strcmp(at, CDP__CK_SWEPT_END) == 0) return CDP__CK_SWEPT;
    return strncmp(at, ".tmp-", 5) == 0 ? CDP__CK_LEFTOVER : CDP__CK_OTHER;
}

/* Looks for the highest step below `below`, and for a folder that was never finished. */
typedef struct cdp__ck_listing {
    cdp__ck_kind kind; /* CDP__CK_STEP or CDP__CK_SWEPT: of steps that are kept, or are not */
    uint64_t below, step;
    bool found, left, file;
    char leftover[128], after[128]; /* or, of any folder, its first file after this one */
} cdp__ck_listing;

CDP__PRIVATE void cdp__ck_list_step(void *user, const char *name) {
    cdp__ck_listing *const l = (cdp__ck_listing *)user;
    uint64_t step;
    const cdp__ck_kind kind = cdp__ck_kind_of(name, &step);
    if (kind == CDP__CK_LEFTOVER && strlen(name) < sizeof l->leftover) {
        memcpy(l->leftover, name, strlen(name) + 1);
        l->left = true;
    }
    if (kind != l->kind || step >= l->below || (l->found && step < l->step)) return;
    l->step = step;
    l->found = true;
}

CDP__PRIVATE int32_t cdp__ck_list_kind(const cdp__ck_disk *d, const char *path, cdp__ck_kind kind,
    uint64_t below, cdp__ck_listing *l) {
    int32_t r;
    memset(l, 0, sizeof *l);
    l->kind = kind;
    l->below = below;
    r = d->os->files.list_folder(d->os->user, path, cdp__ck_list_step, l);
    return r < 0 ? -r : 0;
}

CDP__PRIVATE int32_t cdp__ck_list(
    const cdp__ck_disk *d, const char *path, uint64_t below, cdp__ck_listing *l) {
    return cdp__ck_list_kind(d, path, CDP__CK_STEP, below, l);
}

/* Reads the checkpoint.json of a folder into a table. False: it has no valid one, and *err is the
   errno (ENOENT: none at all) or EBADMSG. */
CDP__PRIVATE bool cdp__ck_describe(
    cdp__ck_disk *d, const char *folder, cdp__ck_table *t, int32_t *err) {
    char path[CDP__CK_PATH], *data;
    uint64_t bytes = 0, twice;
    bool ok;
    cdp__ck_path(path, folder, CDP__CK_DESCRIPTION);
    *err = cdp__ck_read_whole(d, path, CDP__CK_DESCRIPTION_MAX, &data, &bytes);
    if (*err) return false;
    ok = cdp__ck_read_description(t, data, bytes) && cdp__ck_index(t, &twice);
    cdp__free(d->os, data);
    if (!ok) *err = t->status == CDP_ERR_NOMEM ? ENOMEM : EBADMSG;
    return ok;
}

/* Whether a step exists. EBADMSG: its checkpoint.json is damaged, or another step's. */
CDP__PRIVATE bool cdp__ck_complete(cdp__ck_disk *d, const char *path, uint64_t step, int32_t *err) {
    char name[64], folder[CDP__CK_PATH];
    cdp__ck_table t;
    bool ok;
    cdp__ck_step_name(name, step);
    cdp__ck_path(folder, path, name);
    cdp__ck_table_open(&t, d->os);
    ok = cdp__ck_describe(d, folder, &t, err);
    if (ok && t.step != step) {
        *err = EBADMSG;
        ok = false;
    }
    cdp__ck_table_close(&t);
    return ok;
}

/* The newest complete step below `below`. ENOENT: there is none. */
CDP__PRIVATE int32_t cdp__ck_newest(
    cdp__ck_disk *d, const char *path, uint64_t below, uint64_t *step) {
    cdp__ck_listing l;
    for (;;) {
        int32_t err = cdp__ck_list(d, path, below, &l);
        if (err) return err;
        if (!l.found) return ENOENT;
        if (cdp__ck_complete(d, path, l.step, &err)) {
            *step = l.step;
            return 0;
        }
        if (err != ENOENT && err != EBADMSG) return err;
        below = l.step;
    }
}

CDP__PRIVATE void cdp__ck_list_file(void *user, const char *name) {
    cdp__ck_listing *const l = (cdp__ck_listing *)user;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return;
    if (strcmp(name, l->after) <= 0 || strlen(name) >= sizeof l->leftover) return;
    if (l->file && strcmp(name, l->leftover) > 0) return;
    memcpy(l->leftover, name, strlen(name) + 1);
    l->file = true;
}

/* Removes a folder that is no step, or as much of it as can be removed. After a power cut some of
   it may be there again. */
CDP__PRIVATE int32_t cdp__ck_remove_folder(
    const cdp__ck_disk *d, const char *path, const char *name) {
    char folder[CDP__CK_PATH], file[CDP__CK_PATH];
    cdp__ck_listing l;
    int32_t r, err = 0;
    cdp__ck_path(folder, path, name);
    memset(&l, 0, sizeof l);
    for (;;) {
        l.file = false;
        r = d->os->files.list_folder(d->os->user, folder, cdp__ck_list_file, &l);
        if (r < 0) return -r;
        if (!l.file) break;
        cdp__ck_path(file, folder, l.leftover);
        r = -d->os->files.remove_file(d->os->user, file);
        if (!err) err = r;
        memcpy(l.after, l.leftover, sizeof l.after);
    }
    return err ? err : -d->os->files.remove_folder(d->os->user, folder);
}

CDP__PRIVATE void cdp__ck_swept_name(char out[80], uint64_t step) {
    char name[64];
    cdp__ck_step_name(name, step);
    (void)cdp__format(out, 80, "%s" CDP__CK_SWEPT_END, name);
}

/* Removes a step where nothing is renamed: a folder without checkpoint.json is no step. */
CDP__PRIVATE int32_t cdp__ck_unmake_step(
    const cdp__ck_disk *d, const char *path, const char *name) {
    char folder[CDP__CK_PATH], file[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(folder, path, name);
    cdp__ck_path(file, folder, CDP__CK_DESCRIPTION);
    err = -d->os->files.remove_file(d->os->user, file);
    if (!err || err == ENOENT) err = cdp__ck_sync_folder(d, folder); /* it may be gone unsynced */
    return err && err != ENOENT ? err : cdp__ck_remove_folder(d, path, name);
}

/* Removes a step, which first becomes a leftover for good: no cut leaves a part of it as a step. */
CDP__PRIVATE int32_t cdp__ck_remove_step(const cdp__ck_disk *d, const char *path, uint64_t step) {
    char name[64], swept[80], from[CDP__CK_PATH], to[CDP__CK_PATH];
    int32_t err;
    cdp__ck_step_name(name, step);
    if (d->no_rename) return cdp__ck_unmake_step(d, path, name);
    cdp__ck_swept_name(swept, step);
    cdp__ck_path(from, path, name);
    cdp__ck_path(to, path, swept);
    err = -d->os->files.rename_file(d->os->user, from, to);
    if (!err) err = cdp__ck_sync_folder(d, path);
    return err ? err : cdp__ck_remove_folder(d, path, swept);
}

/* Removes a rest of an earlier save; it may be gone already. */
CDP__PRIVATE cdp_status cdp__ck_remove_rest(
    const cdp__ck_disk *d, const char *path, const char *name) {
    const int32_t err = cdp__ck_remove_folder(d, path, name);
    if (!err || err == ENOENT) return CDP_OK;
    return cdp_error_set(CDP_ERR_IO, -1, err,
        "cdp_ckpt_save: cannot remove %s/%s, which an earlier save left: it is no checkpoint; make "
        "it and what is in it removable, or move it away",
        path, name);
}

/* Removes what is left of steps that were swept, as far as that goes: where a program has put a
   folder into one of them, or a reader has a file open, a save succeeds all the same. */
CDP__PRIVATE void cdp__ck_sweep_again(const cdp__ck_disk *d, const char *path) {
    cdp__ck_listing l;
    uint64_t below = UINT64_MAX;
    while (cdp__ck_list_kind(d, path, CDP__CK_SWEPT, below, &l) == 0 && l.found) {
        char name[80];
        below = l.step;
        cdp__ck_swept_name(name, l.step);
        (void)cdp__ck_remove_folder(d, path, name);
    }
}

/* Removes what earlier saves did not finish. */
CDP__PRIVATE cdp_status cdp__ck_sweep_leftovers(const cdp__ck_disk *d, const char *path) {
    cdp__ck_listing l;
    int32_t err;
    cdp__ck_sweep_again(d, path);
    while ((err = cdp__ck_list(d, path, 0, &l)) == 0 && l.left)
        if (cdp__ck_remove_rest(d, path, l.leftover) != CDP_OK) return cdp_last_error()->status;
    return err ? cdp__ck_io(err, "cannot list", path) : CDP_OK;
}

/* Removes steps beyond the newest `keep`, but not `saved`, nor multiples of `every`. One that
   cannot be removed now is tried again when the next step is saved. */
CDP__PRIVATE void cdp__ck_sweep_steps(
    cdp__ck_disk *d, const char *path, uint64_t saved, uint32_t keep, uint64_t every) {
    uint64_t below = UINT64_MAX;
    uint32_t kept = 0;
    cdp__ck_listing l;
    while (cdp__ck_list(d, path, below, &l) == 0 && l.found) {
        int32_t why = 0;
        const bool whole = cdp__ck_complete(d, path, l.step, &why), half = why == ENOENT;
        below = l.step;
        if (!half && (l.step == saved || kept < keep || (every && l.step % every == 0))) {
            if (whole) ++kept; /* what is damaged stays, and does not count */
            continue;
        }
        (void)cdp__ck_remove_step(d, path, l.step);
    }
}

CDP_API cdp_status cdp_ckpt_newest(const char *path, const cdp_os *os, uint64_t *step) {
    cdp__ck_disk d;
    int32_t err;
    if (!path || !step)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_newest", path ? "step" : "path");
    *step = 0;
    if (cdp__os_whole(os, "cdp_ckpt_newest") != CDP_OK) return CDP_ERR_INVALID;
    memset(&d, 0, sizeof d);
    d.os = os ? os : cdp_os_default();
    if (strlen(path) > CDP__CK_PATH_MAX || !d.os->files.list_folder)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt_newest: path is longer than %u bytes, or the os cannot list folders",
            CDP__CK_PATH_MAX);
    err = cdp__ck_newest(&d, path, UINT64_MAX, step);
    if (err == ENOENT)
        return cdp_error_set(
            CDP_ERR_STATE, -1, 0, "cdp_ckpt: there is no complete step in %s", path);
    return err ? cdp__ck_io(err, "cannot list", path) : CDP_OK;
}

/* ---- >>checkpoint/verdict: one status for all ranks ------------------------------------------ */

/* Knows: statuses of all ranks. Promises: after a verdict every rank returns the same status and
   text, and the group stays usable unless it failed itself. */

typedef struct cdp__ck_word {
    uint8_t status[4], sys_errno[4], peer[4];
    char text[CDP_ERROR_TEXT];
} cdp__ck_word;

/* Writes the error of this rank down for the others. `told`: all ranks have been told it already,
   so it says whose it is. */
CDP__PRIVATE void cdp__ck_word_fill(cdp__ck_word *w, cdp_group *g, const cdp_error *e, bool told) {
    cdp__text t = cdp__text_of(w->text, sizeof w->text);
    memset(w, 0, sizeof *w);
    cdp__put_u32(w->status, (uint32_t)(int32_t)e->status);
    cdp__put_u32(w->sys_errno, (uint32_t)e->sys_errno);
    cdp__put_u32(w->peer, told ? (uint32_t)e->peer : cdp_world_rank_of(g, cdp_rank(g)));
    if (cdp_size(g) > 1 && !told) cdp__text_add(&t, "rank %u: ", (unsigned)cdp_rank(g));
    cdp__text_add(&t, "%s", e->text);
    (void)cdp__text_end(&t);
}

/* Makes what a rank wrote down the error of this rank. */
CDP__PRIVATE cdp_status cdp__ck_word_take(cdp__ck_word *w) {
    int32_t status = (int32_t)cdp__get_u32(w->status);
    const int32_t err = (int32_t)cdp__get_u32(w->sys_errno);
    w->text[sizeof w->text - 1] = 0;
    if (status >= 0) status = CDP_ERR_INTERNAL;
    (void)cdp_error_set((cdp_status)status, (int32_t)cdp__get_u32(w->peer), 0, "%s", w->text);
    cdp__error_slot()->sys_errno = err;
    return (cdp_status)status;
}

/* Makes the error of rank `from` that of all ranks. */
CDP__PRIVATE cdp_status cdp__ck_take(cdp_group *g, uint32_t from, bool told) {
    cdp__ck_word w;
    cdp_status st;
    memset(&w, 0, sizeof w);
    if (cdp_rank(g) == from) cdp__ck_word_fill(&w, g, cdp_last_error(), told);
    st = cdp_size(g) > 1 ? cdp_broadcast(g, &w, sizeof w, CDP_DTYPE_U8, from) : CDP_OK;
    return st == CDP_OK ? cdp__ck_word_take(&w) : st;
}

/* Every rank brings its status, and if that is a failure, its last error. The failure of the
   lowest rank is that of all. */
CDP__PRIVATE cdp_status cdp__ck_verdict_of(cdp_group *g, cdp_status mine, bool told) {
    uint32_t failed = mine == CDP_OK ? UINT32_MAX : cdp_rank(g), first = UINT32_MAX;
    cdp_status st;
    if (cdp_group_status(g) != CDP_OK) return cdp_last_error()->status;
    if (cdp_size(g) == 1)
        first = failed;
    else {
        const cdp_error own = *cdp_last_error();
        st = cdp_allreduce(g, &failed, &first, 1, CDP_DTYPE_U32, CDP_REDUCE_MIN);
        if (st != CDP_OK) return st;
        *cdp__error_slot() = own;
    }
    return first == UINT32_MAX ? CDP_OK : cdp__ck_take(g, first, told);
}

CDP__PRIVATE cdp_status cdp__ck_verdict(cdp_group *g, cdp_status mine) {
    return cdp__ck_verdict_of(g, mine, false);
}

/* ---- >>checkpoint/create: a cdp_ckpt, and what it would write -------------------------------- */

/* Knows: the desc. Promises: what it refuses has no effect. */

typedef struct cdp__ck_progress {
    uint64_t done, total; /* bytes */
} cdp__ck_progress;

struct cdp_ckpt {
    cdp_ckpt_desc desc;
    char path[CDP__CK_PATH_MAX + 1];
    const cdp_os *memory; /* of the group, which may be destroyed before */
    uint32_t forks;       /* see cdp__is_child() */
    cdp__ck_disk disk;
    cdp_ckpt_info info;
    cdp__ck_progress progress;
    struct cdp__ck_save *saving; /* in the background */
    bool asynced;                /* it was, once: the same on all ranks */
    bool path_synced;            /* rank 0: the name of the folder of the job is on disk */
    void *stage;                 /* copies of what is being written; kept for the next save */
    uint64_t stage_room;
    cdp__ck_weights weights;
};

/* Refuses no checkpoint, one that was destroyed or is of the parent, and one without its group. */
CDP__PRIVATE cdp_status cdp__ck_alive(const cdp_ckpt *c, const char *call) {
    if (!c) return cdp__missing(call, "ckpt");
    if (cdp__ended(c)) return cdp__fail(CDP_ERR_STATE, "%s: this cdp_ckpt was destroyed", call);
    if (cdp__is_child(c->forks)) return cdp__child_refuses(CDP_ERR_STATE, call, "cdp_ckpt");
    if (!cdp_group_desc_of(c->desc.group))
        return cdp__fail(
            CDP_ERR_STATE, "%s: the group of this cdp_ckpt was destroyed before it", call);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_speed_check(const cdp_ckpt_desc *d, const char *call) {
    if (d->disk_bytes_per_us >= 0 && d->disk_bytes_per_us <= 1e15) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "%s: desc.disk_bytes_per_us is negative or no number; bytes in a microsecond, such as 750",
        call);
}

/* How long the disk needs for so many bytes of all ranks. */
CDP__PRIVATE double cdp__ck_predict(const cdp_ckpt_desc *d, uint64_t bytes) {
    return (double)bytes / (d->disk_bytes_per_us > 0 ? d->disk_bytes_per_us : 750);
}

CDP__PRIVATE cdp_status cdp__ck_desc_check(const cdp_ckpt_desc *d, const cdp_os *os) {
    const cdp_os_files *const f = &os->files;
    if (cdp__os_whole(d->os, "cdp_ckpt_create") != CDP_OK) return CDP_ERR_INVALID;
    if (cdp__ck_speed_check(d, "cdp_ckpt_create") != CDP_OK) return CDP_ERR_INVALID;
    if (!d->path) return cdp__missing("cdp_ckpt_create", "desc.path");
    if (!*d->path || strlen(d->path) > CDP__CK_PATH_MAX)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt_create: desc.path is empty, or longer than %u bytes", CDP__CK_PATH_MAX);
    if ((d->item_count && !d->items) || (d->blob_count && !d->blobs))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_create",
            d->item_count && !d->items ? "desc.items" : "desc.blobs");
    if (!f->open_file || !f->rename_file || !f->sync_file || !f->make_folder || !f->remove_folder
        || !f->list_folder || !f->sync_folder)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt_create: the os has no files, or cannot sync them or list folders: set all "
            "of cdp_os.files");
    if (cdp__byte_order() != 1)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt_create: files are little-endian, this machine is not");
    return CDP_OK;
}

CDP_API cdp_status cdp_ckpt_create(const cdp_ckpt_desc *desc, cdp_ckpt **out) {
    const cdp_os *os;
    cdp_ckpt *c;
    cdp_status st;
    if (!out) return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_create", "out");
    *out = NULL;
    if (!desc || !desc->group)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_create", desc ? "desc.group" : "desc");
    if (!cdp_group_desc_of(desc->group))
        return cdp__fail(CDP_ERR_STATE, "cdp_ckpt_create: the group was destroyed");
    os = cdp_group_desc_of(desc->group)->os;
    st = cdp__ck_desc_check(desc, desc->os ? desc->os : os);
    if (st != CDP_OK) return st;
    c = (cdp_ckpt *)cdp__alloc_zero(os, sizeof *c);
    if (!c)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "out of memory: a cdp_ckpt needs %llu bytes",
            (unsigned long long)sizeof *c);
    cdp__ended_remove(c);
    c->forks = cdp__forks_watch();
    c->memory = os;
    c->desc = *desc;
    memcpy(c->path, desc->path, strlen(desc->path) + 1);
    c->desc.path = c->path;
    c->disk.os = desc->os ? desc->os : os;
    c->disk.no_sync = desc->no_sync;
    c->disk.no_rename = desc->no_rename;
    cdp__ck_weights_fill(&c->weights);
    *out = c;
    return CDP_OK;
}

CDP__PRIVATE void cdp__ck_progressed(const cdp_ckpt_desc *d, cdp__ck_progress *p, uint64_t bytes) {
    p->done += bytes;
    if (d->progress) d->progress(d->user, p->done, p->total);
}

CDP_API cdp_ckpt_info cdp_ckpt_info_of(const cdp_ckpt *c) {
    cdp_ckpt_info none;
    memset(&none, 0, sizeof none);
    return c && !cdp__ended(c) ? c->info : none;
}

/* Adds what this rank writes of an entry. */
CDP__PRIVATE void cdp__ck_preview_entry(
    const cdp_ckpt_desc *d, const cdp__ck_entry *e, cdp_ckpt_info *out) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint32_t rank = d->group ? cdp_rank(d->group) : 0;
    const uint32_t size = d->group ? cdp_size(d->group) : 1;
    const cdp__ck_piece p = cdp__ck_item_piece(&d->items[e->item], rank, size);
    uint64_t place = p.first;
    out->total_bytes += e->bytes;
    out->bytes_written += (p.last - p.first) * elem;
    while (place < p.last) {
        const cdp__ck_run r = cdp__ck_run_at(&p, place, p.last);
        out->writes += (r.count * elem + CDP__CK_CALL - 1) / CDP__CK_CALL;
        place += r.count;
    }
}

CDP_API cdp_status cdp_ckpt_preview(const cdp_ckpt_desc *desc, cdp_ckpt_info *out) {
    const cdp_os *os = NULL;
    cdp__ck_table t;
    cdp_status st;
    uint64_t i;
    if (!desc || !out)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_preview", desc ? "out" : "desc");
    memset(out, 0, sizeof *out);
    if (cdp__ck_speed_check(desc, "cdp_ckpt_preview") != CDP_OK) return CDP_ERR_INVALID;
    if (desc->group) os = cdp_group_desc_of(desc->group)->os;
    if (cdp__os_whole(desc->os, "cdp_ckpt_preview") != CDP_OK) return CDP_ERR_INVALID;
    if (!os) os = desc->os ? desc->os : cdp_os_default();
    if (desc->item_count && !desc->items)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_preview", "items");
    cdp__ck_table_open(&t, os);
    st = cdp__ck_plan(&t, desc);
    if (st == CDP_OK) st = cdp__ck_plan_limits(&t);
    for (i = 0; st == CDP_OK && i < t.count; ++i)
        cdp__ck_preview_entry(desc, &t.entries[i], out);
    out->files = t.file_count;
    out->predicted_us = cdp__ck_predict(desc, out->total_bytes);
    cdp__ck_table_close(&t);
    return st;
}

/* ---- >>checkpoint/agree: the items of all ranks are the same, and each element has one writer  */

/* Knows: items and their pieces on this rank. Promises: an error names the item, and is the same
   on all ranks. */

enum {
    CDP__CK_WORDS = 10
};

CDP__PRIVATE uint64_t cdp__ck_text_hash(uint64_t h, const char *text) {
    return cdp__hash(h, text, text ? strlen(text) + 1 : 0);
}

CDP__PRIVATE uint64_t cdp__ck_item_hash(const cdp_item *i) {
    const uint64_t *shape;
    const uint32_t ndim = cdp__ck_item_shape(i, &shape);
    uint64_t words[2 + CDP_TENSOR_DIMS] = {0};
    words[0] = (uint64_t)cdp__ck_item_dtype(i);
    words[1] = ndim;
    memcpy(words + 2, shape, ndim * sizeof *shape);
    return cdp__ck_text_hash(
        cdp__ck_text_hash(cdp__dt_hash(words, 2 + CDP_TENSOR_DIMS), i->name), cdp__ck_item_file(i));
}

CDP__PRIVATE uint64_t cdp__ck_blob_hash(const cdp_ckpt_blob *b) {
    return cdp__ck_text_hash(CDP__HASH_START + b->per_rank, b->name);
}

/* The error is that of rank 0, which has rank 0's names. */
CDP__PRIVATE cdp_status cdp__ck_differs(
    const cdp_ckpt *c, uint32_t what, uint32_t rank, const uint64_t values[2]) {
    static const char *const names[CDP__CK_WORDS] = {"the step", "the number of items",
        "the number of blobs", "file_bytes", "the path", "partial", "no_sync", "no_verify",
        "incremental", "no_rename"};
    const cdp_ckpt_desc *const d = &c->desc;
    const uint32_t item = what - CDP__CK_WORDS;
    const bool blob = item >= d->item_count;
    if (what < CDP__CK_WORDS)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(d->group, rank), 0,
            "cdp_ckpt: %s is not the same on ranks 0 and %u (%llu, %llu)", names[what],
            (unsigned)rank, (unsigned long long)values[0], (unsigned long long)values[1]);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)cdp_world_rank_of(d->group, rank), 0,
        "cdp_ckpt: %s %u, '%s' on rank 0, is another one on rank %u: name, shape, dtype, file and "
        "order must be the same",
        blob ? "blob" : "item", (unsigned)(blob ? item - d->item_count : item),
        blob ? d->blobs[item - d->item_count].name : d->items[item].name, (unsigned)rank);
}

/* Compares step, options, items and blobs over all ranks. */
CDP__PRIVATE cdp_status cdp__ck_agree(cdp_ckpt *c, uint64_t step, const char *path) {
    const cdp_ckpt_desc *const d = &c->desc;
    const cdp_os *const os = cdp_group_desc_of(d->group)->os;
    const uint64_t n = (uint64_t)d->item_count + d->blob_count;
    uint64_t first[CDP__CK_WORDS], values[2] = {0, 0}, *words, i;
    uint32_t rank, word;
    cdp_status st;
    first[0] = step;
    first[1] = d->item_count;
    first[2] = d->blob_count;
    first[3] = d->file_bytes;
    first[4] = cdp__ck_text_hash(CDP__HASH_START, path);
    first[5] = d->partial;
    first[6] = d->no_sync;
    first[7] = d->no_verify;
    first[8] = d->incremental;
    first[9] = d->no_rename;
    st = cdp__dt_agree(d->group, os, first, CDP__CK_WORDS, &rank, &word, values);
    if (st != CDP_OK) return st;
    if (rank != CDP__DT_NONE)
        return cdp__ck_verdict(d->group, cdp__ck_differs(c, word, rank, values));
    words = (uint64_t *)cdp__alloc(os, n * sizeof *words);
    st = words ? CDP_OK
               : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for %llu items",
                   (unsigned long long)n);
    st = cdp__ck_verdict(d->group, st);
    for (i = 0; st == CDP_OK && i < n; ++i)
        words[i] = i < d->item_count ? cdp__ck_item_hash(&d->items[i])
                                     : cdp__ck_blob_hash(&d->blobs[i - d->item_count]);
    if (st == CDP_OK) st = cdp__dt_agree(d->group, os, words, (uint32_t)n, &rank, &word, values);
    cdp__free(os, words);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    return cdp__ck_verdict(d->group, cdp__ck_differs(c, CDP__CK_WORDS + word, rank, values));
}

/* Checks that shares of all ranks are each tensor once; entries that are no item's do not count. */
CDP__PRIVATE cdp_status cdp__ck_covered(cdp_ckpt *c, const cdp__ck_table *t) {
    const cdp_ckpt_desc *const d = &c->desc;
    uint64_t *const shares = (uint64_t *)cdp__alloc_zero(t->os, 2 * t->count * sizeof *shares);
    uint64_t i;
    cdp_status st =
        shares ? CDP_OK : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory");
    st = cdp__ck_verdict(d->group, st);
    for (i = 0; st == CDP_OK && i < t->count; ++i) {
        const uint32_t item = t->entries[i].item;
        if (item != UINT32_MAX) {
            const cdp__ck_piece p =
                cdp__ck_item_piece(&d->items[item], cdp_rank(d->group), cdp_size(d->group));
            shares[i] = p.last - p.first;
        }
    }
    if (st == CDP_OK && t->count)
        st = cdp_allreduce(
            d->group, shares, shares + t->count, t->count, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    for (i = 0; st == CDP_OK && i < t->count; ++i) {
        const cdp__ck_entry *const e = &t->entries[i];
        const uint64_t got = shares[t->count + i], elem = cdp__dtype_row_of(e->dtype)->bytes;
        if (e->item == UINT32_MAX || got * elem == e->bytes) continue;
        st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: item '%s' has %llu elements, and ranks hold %llu, copies not counted: its "
            "mesh must have all ranks that hold a copy or a piece, and parts must not overlap",
            cdp__ck_name(t, e), (unsigned long long)(e->bytes / elem), (unsigned long long)got);
    }
    cdp__free(t->os, shares);
    return st;
}

/* Whether memory is there for all that this rank holds, and blobs have names. */
CDP__PRIVATE cdp_status cdp__ck_memory_check(const cdp_ckpt *c) {
    const cdp_ckpt_desc *const d = &c->desc;
    uint32_t i;
    for (i = 0; i < d->item_count; ++i) {
        const cdp_item *const item = &d->items[i];
        if (!item->tensor.data
            && cdp__ck_item_piece(item, cdp_rank(d->group), cdp_size(d->group)).count)
            return cdp_error_set(
                CDP_ERR_INVALID, -1, 0, "cdp_ckpt: item '%s' has no data", item->name);
    }
    for (i = 0; i < d->blob_count; ++i) {
        const cdp_ckpt_blob *const b = &d->blobs[i];
        if (!b->name || !cdp__ck_name_fits(b->name) || strlen(b->name) > CDP__CK_NAME - 16)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt: blobs[%u].name is not 1 to %u bytes of UTF-8 without control "
                "characters",
                (unsigned)i, CDP__CK_NAME - 16);
        if (!b->data && (b->bytes || b->room))
            return cdp_error_set(
                CDP_ERR_INVALID, -1, 0, "cdp_ckpt: blob '%s' has no data", b->name);
    }
    return CDP_OK;
}

/* ---- >>checkpoint/save: a checkpoint on its way to disk -------------------------------------- */

/* Knows: what a save is, and what rank 0 does for it: blobs, folders, and the order in which files,
   names and folders become durable. Promises: a step exists from the rename of its folder on (with
   no_rename: from its checkpoint.json on), and never before all of it is on disk; existing steps
   are not touched. */

/* What this rank writes of an entry: a range of its memory, or of a copy. */
typedef struct cdp__ck_share {
    cdp__ck_piece p;
    const uint8_t *at; /* of element `first` of the memory of this rank */
    uint64_t first;
    bool copied;
} cdp__ck_share;

/* States of a save; each is left by one step. */
typedef enum cdp__ck_phase {
    CDP__CK_DO_BEGIN,  /* rank 0 makes the files */
    CDP__CK_DO_NAME,   /* the others learn the name of the folder */
    CDP__CK_DO_WRITE,  /* all ranks write and sync their shares */
    CDP__CK_DO_SUMS,   /* sums of all ranks are added */
    CDP__CK_DO_COMMIT, /* rank 0 makes the step durable */
    CDP__CK_DO_SWEEP,  /* and removes older ones */
    CDP__CK_DO_VOTED,  /* all ranks know whether one of them failed */
    CDP__CK_DO_TOLD,   /* and why */
    CDP__CK_DO_UNDO,   /* after a failure */
    CDP__CK_DO_ENDED
} cdp__ck_phase;

/* A save. What it needs of the program's items is copied at the call; a thread may go on with the
   rest. `lock` guards the place of the writer, the places of shares, and `ended`. */
typedef struct cdp__ck_save {
    cdp_ckpt *c;      /* what does not change after its creation */
    cdp_group *group; /* that of the cdp_ckpt; in the background one of its own */
    cdp__ck_disk disk;
    cdp__ck_table t;
    cdp__ck_share *shares;
    cdp_ckpt_info info;
    cdp__ck_progress progress;
    uint64_t step, id;
    uint64_t tensor_count, tensor_files, tensor_sums; /* blobs follow, on rank 0 alone */
    char name[64], folder[CDP__CK_PATH];              /* of the step; where it is written */
    char from[CDP__CK_PATH];                          /* rank 0: the step that has linked files */
    uint8_t *blobs;                                   /* rank 0: bytes of all blobs */
    uint64_t blob_bytes, blob_room;
    int32_t lock_file; /* descriptor */

    cdp__ck_phase phase, next; /* next: after a vote that found no failure */
    cdp_work work;             /* an operation in flight, if `flying` */
    bool flying;
    uint32_t failed, first; /* this rank if it failed, and the lowest one that did; UINT32_MAX */
    cdp__ck_word word;
    cdp_status status; /* how it ended, and why */
    cdp_error error;
    bool told; /* by the rank that failed, to all */

    cdp_lock lock;
    void *cond, *thread;
    bool ended, busy, live;         /* busy: a chunk is being written, `live`: from no copy */
    uint64_t entry, place, claimed; /* the next chunk; an entry that is being copied */
    uint64_t rest;                  /* bytes that no chunk took yet */
    int32_t file;                   /* descriptor that is written, of file `file_index` */
    uint32_t file_index;
    uint64_t began_ns; /* writing */

    /* copied: what was left; staged: the program may change its memory. These are of its thread */
    bool copied, staged;
    uint64_t stage_bytes, stall_ns;
} cdp__ck_save;

/* ---- blobs: rank 0 writes them ---- */

/* Adds one blob of one rank, whose bytes are at s->blobs + at. */
CDP__PRIVATE bool cdp__ck_blob_entry(
    cdp__ck_save *s, const cdp_ckpt_blob *b, uint32_t rank, uint64_t at, uint64_t bytes) {
    char name[CDP__CK_NAME + 1];
    cdp__text n = cdp__text_of(name, sizeof name);
    cdp__ck_entry e;
    memset(&e, 0, sizeof e);
    cdp__text_add(&n, "%s", b->name);
    if (b->per_rank) {
        cdp__text_add(&n, ".rank");
        cdp__ck_digits(&n, rank, 5);
    }
    (void)cdp__text_end(&n);
    e.name = cdp__ck_text(&s->t, name, strlen(name));
    e.blob = true;
    e.dtype = CDP_DTYPE_U8;
    e.ndim = 1;
    e.shape[0] = e.bytes = bytes;
    e.at = at;
    e.file = (uint32_t)s->tensor_files;
    if (e.name == UINT64_MAX || !cdp__ck_sums_new(&s->t, &e)) return false;
    cdp__ck_sum_slabs(
        &s->c->weights, s->blobs + at, 1, 0, bytes, s->t.slab, s->t.sums + e.first_sum);
    return cdp__ck_add_entry(&s->t, &e);
}

/* Rank 0 keeps what all ranks have of a blob. */
CDP__PRIVATE bool cdp__ck_blob_keep(
    cdp__ck_save *s, const cdp_ckpt_blob *b, const uint8_t *data, const uint64_t *lengths) {
    const uint32_t n = b->per_rank ? cdp_size(s->c->desc.group) : 1;
    uint32_t r;
    for (r = 0; r < n; ++r) {
        const uint64_t at = s->blob_bytes;
        uint8_t *const more =
            (uint8_t *)cdp__ck_room(&s->t, s->blobs, &s->blob_room, at + lengths[r], 1);
        if (!more) return false;
        s->blobs = more;
        if (lengths[r]) memcpy(more + at, data, (size_t)lengths[r]);
        data += lengths[r];
        s->blob_bytes += lengths[r];
        if (!cdp__ck_blob_entry(s, b, r, at, lengths[r])) return false;
    }
    return true;
}

CDP__PRIVATE cdp_status cdp__ck_blob_gather(cdp__ck_save *s, const cdp_ckpt_blob *b, bool *kept) {
    cdp_group *const g = s->c->desc.group;
    const bool root = cdp_rank(g) == 0, mine = b->per_rank || root;
    cdp_blob all;
    cdp_status st;
    memset(&all, 0, sizeof all);
    if (root) {
        all.lengths = (uint64_t *)cdp__alloc_zero(s->t.os, cdp_size(g) * sizeof *all.lengths);
        if (!all.lengths) *kept = cdp__ck_none(&s->t);
    }
    st = cdp_gather_bytes(g, mine ? b->data : NULL, mine ? b->bytes : 0, 0, &all);
    if (st == CDP_OK && root && *kept)
        *kept = cdp__ck_blob_keep(s, b, (const uint8_t *)all.data, all.lengths);
    cdp__free(s->t.os, all.lengths);
    cdp_blob_free(g, &all);
    return st;
}

/* Gathers all blobs on rank 0, and adds their file to its table. */
CDP__PRIVATE cdp_status cdp__ck_blobs(cdp__ck_save *s) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    uint64_t twice = UINT64_MAX;
    bool kept = true;
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; st == CDP_OK && i < d->blob_count; ++i)
        st = cdp__ck_blob_gather(s, &d->blobs[i], &kept);
    if (st != CDP_OK || cdp_rank(d->group) || !d->blob_count) return st;
    if (kept) kept = cdp__ck_file_new(&s->t) != NULL;
    if (kept) {
        const uint64_t name = cdp__ck_text(&s->t, CDP__CK_BLOBS, strlen(CDP__CK_BLOBS));
        s->t.files[s->tensor_files].name = name;
        s->t.files[s->tensor_files].bytes = s->blob_bytes;
        kept = name != UINT64_MAX && cdp__ck_index(&s->t, &twice);
    }
    if (kept) cdp__ck_plan_offsets(&s->t, s->tensor_files);
    if (twice != UINT64_MAX)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt: two items or blobs have the name '%s'",
            cdp__ck_name(&s->t, &s->t.entries[twice]));
    return kept ? CDP_OK : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for blobs");
}

/* ---- rank 0: folders and files ---- */

/* A second job that saves into the folder would remove what this one writes. */
CDP__PRIVATE cdp_status cdp__ck_lock(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->disk.os->files;
    char path[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(path, s->c->path, "lock");
    err = cdp__ck_open_file(&s->disk, path, CDP_FILE_WRITE | CDP_FILE_CREATE, &s->lock_file);
    if (err) return cdp__ck_io(err, "cannot create", path);
    /* a file system without locks protects nobody, and is no reason not to save */
    if (!f->lock_file
        || f->lock_file(s->disk.os->user, s->lock_file, CDP_FILE_LOCK_ALONE) != -EAGAIN)
        return CDP_OK;
    return cdp_error_set(CDP_ERR_BUSY, -1, 0,
        "cdp_ckpt_save: another job saves into %s now; give each job a folder of its own",
        s->c->path);
}

/* Gives the lock back before the file is closed: a process that was forked meanwhile has the same
   file open, and would have the lock as long as it lives. */
CDP__PRIVATE void cdp__ck_unlock(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->disk.os->files;
    int32_t err = 0;
    if (s->lock_file >= 0 && f->lock_file)
        (void)f->lock_file(s->disk.os->user, s->lock_file, CDP_FILE_UNLOCK);
    cdp__ck_close_file(&s->disk, s->lock_file, &err);
    s->lock_file = -1;
}

/* Closes the earlier step's files that were opened when they were found to be unchanged. */
CDP__PRIVATE void cdp__ck_let_go(cdp__ck_save *s) {
    int32_t err = 0;
    uint32_t i;
    for (i = 0; s->t.files && i < s->t.file_count; ++i) {
        if (s->t.files[i].held) cdp__ck_close_file(&s->disk, s->t.files[i].held - 1, &err);
        s->t.files[i].held = 0;
    }
}

/* A file that has not changed is that of the earlier step, which nothing writes to any more; if it
   was removed meanwhile, its bytes are copied. */
CDP__PRIVATE cdp_status cdp__ck_take_file(cdp__ck_save *s, const cdp__ck_file *f) {
    char from[CDP__CK_PATH], to[CDP__CK_PATH];
    int32_t err;
    cdp__ck_path(from, s->from, s->t.text + f->name);
    cdp__ck_path(to, s->folder, s->t.text + f->name);
    err = cdp__ck_link_file(&s->disk, from, to, f->bytes, f->held - 1);
    return err ? cdp__ck_io(err, "cannot link or copy", from) : CDP_OK;
}

/* Creates a file with its header and its final length; it is synced when it is whole. */
CDP__PRIVATE cdp_status cdp__ck_begin_file(cdp__ck_save *s, uint32_t file) {
    const cdp__ck_file *const f = &s->t.files[file];
    uint8_t *header;
    char path[CDP__CK_PATH];
    int32_t err;
    if (f->linked) return cdp__ck_take_file(s, f);
    header = (uint8_t *)cdp__alloc(s->t.os, f->data_at);
    if (!header) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for a header");
    cdp__ck_fill_header(&s->t, file, header, f->data_at);
    cdp__ck_path(path, s->folder, s->t.text + f->name);
    err = cdp__ck_write_file(&s->disk, path, header, f->data_at, f->bytes, false);
    cdp__free(s->t.os, header);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* The index of the files whose names begin with this text, as Hugging Face has it. */
CDP__PRIVATE void cdp__ck_write_index(cdp__text *t, const cdp__ck_save *s, uint64_t begin) {
    uint64_t total = 0, i;
    bool comma = false;
    for (i = 0; i < s->t.count; ++i)
        if (!s->t.entries[i].blob && s->t.entries[i].begin == begin) total += s->t.entries[i].bytes;
    cdp__text_add(
        t, "{\"metadata\":{\"total_size\":%llu},\n\"weight_map\":{", (unsigned long long)total);
    for (i = 0; i < s->t.count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        if (e->blob || e->begin != begin) continue;
        cdp__text_add(t, comma ? ",\n" : "\n");
        comma = true;
        cdp__json_string(t, cdp__ck_name(&s->t, e));
        cdp__text_char(t, ':');
        cdp__json_string(t, cdp__ck_file_name(&s->t, e));
    }
    cdp__text_add(t, "}}\n");
}

CDP__PRIVATE cdp_status cdp__ck_index_file(cdp__ck_save *s, uint64_t begin) {
    cdp__text t = cdp__text_of(NULL, 0);
    char path[CDP__CK_PATH], *memory;
    int32_t err;
    cdp__ck_write_index(&t, s, begin);
    memory = (char *)cdp__alloc(s->t.os, t.used + 1);
    if (!memory) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for an index");
    t = cdp__text_of(memory, t.used + 1);
    cdp__ck_write_index(&t, s, begin);
    (void)cdp__format(
        path, sizeof path, "%s/%s.safetensors.index.json", s->folder, s->t.text + begin);
    err = cdp__ck_write_file(&s->disk, path, memory, t.used, t.used, true);
    cdp__free(s->t.os, memory);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* Makes the folder of the job. Its own name is synced once by each cdp_ckpt: an earlier job may
   have made it and ended before that. */
CDP__PRIVATE cdp_status cdp__ck_make_path(cdp__ck_save *s) {
    const int32_t r = s->disk.os->files.make_folder(s->disk.os->user, s->c->path);
    char parent[CDP__CK_PATH_MAX + 1];
    uint64_t n = strlen(s->c->path);
    int32_t err;
    if (r < 0 && r != -EEXIST) return cdp__ck_io(-r, "cannot make the folder", s->c->path);
    if (r < 0 && s->c->path_synced) return CDP_OK;
    memcpy(parent, s->c->path, (size_t)n + 1);
    while (n > 1 && parent[n - 1] == '/') /* at the end */
        --n;
    while (n && parent[n - 1] != '/')
        --n;
    parent[n] = 0;
    err = cdp__ck_sync_folder(&s->disk, n ? parent : ".");
    if (err == EACCES && r < 0) err = 0; /* it is not ours, and neither is its name */
    if (err) return cdp__ck_io(err, "cannot sync the folder above", s->c->path);
    s->c->path_synced = true;
    return CDP_OK;
}

/* The name that the folder has until it is complete. */
CDP__PRIVATE void cdp__ck_set_folder(cdp__ck_save *s) {
    if (s->disk.no_rename)
        cdp__ck_path(s->folder, s->c->path, s->name);
    else
        (void)cdp__format(s->folder, sizeof s->folder, "%s/%s.tmp-%llx", s->c->path, s->name,
            (unsigned long long)s->id);
}

/* Whether checkpoint.json of this step was cut, or changed: one that is whole, but of another
   version or step, is somebody's. */
CDP__PRIVATE bool cdp__ck_was_cut(cdp__ck_save *s) {
    char folder[CDP__CK_PATH], path[CDP__CK_PATH], *data;
    uint64_t bytes = 0;
    cdp__ck_path(folder, s->c->path, s->name);
    cdp__ck_path(path, folder, CDP__CK_DESCRIPTION);
    if (cdp__ck_read_whole(&s->disk, path, CDP__CK_DESCRIPTION_MAX, &data, &bytes)) return false;
    const bool cut = !cdp__ck_checked(data, bytes);
    cdp__free(s->disk.os, data);
    return cut;
}

/* C1: the folder with that name, and the files. */
CDP__PRIVATE cdp_status cdp__ck_begin(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->disk.os->files;
    char path[CDP__CK_PATH];
    cdp_status st;
    int32_t r;
    uint32_t i;
    st = cdp__ck_make_path(s);
    if (st == CDP_OK) st = cdp__ck_lock(s);
    if (st != CDP_OK) return st;
    if (cdp__ck_complete(&s->disk, s->c->path, s->step, &r)
        || (r == EBADMSG && !(s->disk.no_rename && cdp__ck_was_cut(s))))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_ckpt_save: step %llu exists in %s; remove it, or save another step",
            (unsigned long long)s->step, s->c->path);
    if (r != ENOENT && r != EBADMSG) { /* it may be a good one, which another save leaves alone */
        cdp__ck_path(path, s->c->path, s->name);
        return cdp__ck_io(r, "cannot read checkpoint.json in", path);
    }
    st = cdp__ck_remove_rest(&s->disk, s->c->path, s->name); /* of a step that was removed, or not
                                                                finished */
    if (st == CDP_OK) st = cdp__ck_sweep_leftovers(&s->disk, s->c->path);
    if (st != CDP_OK) return st;
    if (s->disk.os->random(s->disk.os->user, &s->id, sizeof s->id) != CDP_OK)
        return cdp_error_set(CDP_ERR_IO, -1, 0, "cdp_ckpt_save: there are no random numbers");
    cdp__ck_set_folder(s);
    r = f->make_folder(s->disk.os->user, s->folder);
    if (r < 0) return cdp__ck_io(-r, "cannot make the folder", s->folder);
    for (i = 0; st == CDP_OK && i < s->t.file_count; ++i)
        st = cdp__ck_begin_file(s, i);
    cdp__ck_let_go(s);
    for (i = 0; st == CDP_OK && i < s->tensor_count; ++i) /* files with one begin are neighbours */
        if (!i || s->t.entries[i].begin != s->t.entries[i - 1].begin)
            st = cdp__ck_index_file(s, s->t.entries[i].begin);
    return st;
}

/* ---- rank 0: commit ---- */

CDP__PRIVATE cdp_status cdp__ck_write_blobs(cdp__ck_save *s) {
    const cdp__ck_file *const f = &s->t.files[s->tensor_files];
    char path[CDP__CK_PATH];
    int32_t fd, err;
    if (s->t.file_count == s->tensor_files) return CDP_OK;
    cdp__ck_path(path, s->folder, s->t.text + f->name);
    err = cdp__ck_open_file(&s->disk, path, CDP_FILE_WRITE, &fd);
    if (!err) err = cdp__ck_write(&s->disk, fd, f->data_at, s->blobs, s->blob_bytes);
    if (!err) err = cdp__ck_sync(&s->disk, fd);
    cdp__ck_close_file(&s->disk, fd, &err);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* C4, C5: checkpoint.json, which says that everything else is there. */
CDP__PRIVATE cdp_status cdp__ck_write_description(cdp__ck_save *s) {
    cdp__text t = cdp__text_of(NULL, 0);
    uint64_t room, hash;
    char *memory, path[CDP__CK_PATH];
    int32_t err;
    cdp__ck_write_body(&t, &s->t);
    room = t.used + 64;
    memory = (char *)cdp__alloc(s->t.os, room);
    if (!memory)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for checkpoint.json");
    t = cdp__text_of(memory, room);
    cdp__ck_write_body(&t, &s->t);
    hash = cdp__hash(CDP__HASH_START, memory, t.used);
    cdp__text_add(&t, CDP__CK_CHECK);
    cdp__ck_hex(&t, hash);
    cdp__text_add(&t, "\"}\n");
    cdp__ck_path(path, s->folder, CDP__CK_DESCRIPTION);
    err = cdp__ck_write_file(&s->disk, path, memory, t.used, t.used, true);
    cdp__free(s->t.os, memory);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* C7 to C9: the folder has the name of the step, which is durable then. `latest` needs no sync. */
CDP__PRIVATE cdp_status cdp__ck_publish(cdp__ck_save *s) {
    const cdp_os_files *const f = &s->disk.os->files;
    char path[CDP__CK_PATH], latest[80];
    uint64_t length;
    int32_t err;
    cdp__ck_path(path, s->c->path, s->name);
    err = s->disk.no_rename ? 0 : -f->rename_file(s->disk.os->user, s->folder, path);
    if (err) return cdp__ck_io(err, "cannot rename the folder to", path);
    err = cdp__ck_sync_folder(&s->disk, s->c->path);
    if (err) return cdp__ck_io(err, "cannot sync", s->c->path);
    length = cdp__format(latest, sizeof latest, "%s\n", s->name);
    err = cdp__ck_place_file(&s->disk, s->c->path, "latest", latest, length);
    return err ? cdp__ck_io(err, "cannot write latest in", s->c->path) : CDP_OK;
}

/* C6: all names in the folder. */
CDP__PRIVATE cdp_status cdp__ck_sync_names(const cdp__ck_save *s) {
    const int32_t err = cdp__ck_sync_folder(&s->disk, s->folder);
    return err ? cdp__ck_io(err, "cannot sync", s->folder) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_commit(cdp__ck_save *s) {
    const cdp_os *const os = s->disk.os;
    const uint64_t began = os->now_ns(os->user);
    cdp_status st = cdp__ck_write_blobs(s);
    if (st == CDP_OK && s->disk.no_rename) st = cdp__ck_sync_names(s); /* before the step exists */
    if (st == CDP_OK) st = cdp__ck_write_description(s);
    if (st == CDP_OK) st = cdp__ck_sync_names(s);
    if (st == CDP_OK) st = cdp__ck_publish(s);
    s->info.commit_ns = os->now_ns(os->user) - began;
    return st;
}

/* Removes what a failed save has written, as far as that works: the next one tries again. A step
   that exists stays: another rank may have heard of no failure. */
CDP__PRIVATE void cdp__ck_undo(cdp__ck_save *s) {
    const char *const name = strrchr(s->folder, '/');
    int32_t why = ENOENT;
    if (!s->folder[0] || !name) return;
    if (s->disk.no_rename && cdp__ck_complete(&s->disk, s->c->path, s->step, &why)) return;
    if (why == ENOENT || (why == EBADMSG && cdp__ck_was_cut(s)))
        (void)cdp__ck_remove_folder(&s->disk, s->c->path, name + 1);
}

/* ---- >>checkpoint/write: the bytes of this rank on their way to disk, or to a copy ----------- */

/* Knows: shares of this rank and the place of the writer. Promises: each byte is written once, from
   memory of the program that it may not change yet, or from the one copy; the writer goes on while
   memory is copied. */

#define CDP__CK_NOTHING UINT64_MAX /* no entry is claimed */

/* Notes what this rank writes, while the program's layouts and pointers may be read. */
CDP__PRIVATE bool cdp__ck_shares(cdp__ck_save *s) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    uint64_t i;
    s->shares = (cdp__ck_share *)cdp__alloc(s->t.os, s->t.count * sizeof *s->shares);
    if (!s->shares) return false;
    for (i = 0; i < s->t.count; ++i) {
        cdp__ck_entry *const e = &s->t.entries[i];
        cdp__ck_share *const h = &s->shares[i];
        const cdp_layout *const l = &d->items[e->item].tensor.layout;
        const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
        h->p = cdp__ck_item_piece(&d->items[e->item], cdp_rank(d->group), cdp_size(d->group));
        h->first = h->p.first;
        h->copied = false;
        h->at = (const uint8_t *)d->items[e->item].tensor.data;
        if (h->at) h->at += h->first * elem;
        s->rest += (h->p.last - h->p.first) * elem;
        if (cdp_rank(d->group) == 0 && !cdp__ck_keep_layout(&s->t, e, l)) return false;
    }
    s->tensor_count = s->t.count;
    s->place = s->tensor_count ? s->shares[0].p.first : 0;
    s->progress.total = s->rest;
    return true;
}

/* ---- the writer ---- */

/* A stretch that is written with one call. */
typedef struct cdp__ck_chunk {
    const cdp__ck_entry *e;
    cdp__ck_run run;
    const uint8_t *from;
} cdp__ck_chunk;

CDP__PRIVATE void cdp__ck_signal(cdp__ck_save *s) {
    if (s->cond) s->t.os->threads.cond_broadcast(s->t.os->user, s->cond);
}

/* Moves to the next entry of which something is left. False: there is none. */
CDP__PRIVATE bool cdp__ck_forward(cdp__ck_save *s) {
    while (s->entry < s->tensor_count && s->place == s->shares[s->entry].p.last)
        if (++s->entry < s->tensor_count) s->place = s->shares[s->entry].p.first;
    return s->entry < s->tensor_count;
}

/* Takes the next chunk. False: all are taken. */
CDP__PRIVATE bool cdp__ck_next(cdp__ck_save *s, cdp__ck_chunk *k) {
    const cdp__ck_share *h;
    uint64_t elem;
    bool left;
    cdp__lock_take(&s->lock);
    while ((left = cdp__ck_forward(s)) && s->entry == s->claimed) /* for as long as a copy takes */
        s->t.os->threads.cond_wait(s->t.os->user, s->cond, s->lock.mutex, CDP__NEVER);
    if (left) {
        h = &s->shares[s->entry];
        k->e = &s->t.entries[s->entry];
        elem = cdp__dtype_row_of(k->e->dtype)->bytes;
        k->run =
            cdp__ck_run_at(&h->p, s->place, cdp__min(h->p.last, s->place + CDP__CK_AT_ONCE / elem));
        k->from = h->at + (s->place - h->first) * elem;
        s->busy = true;
        s->live = !h->copied;
        s->place += k->run.count;
        s->rest -= k->run.count * elem;
    }
    cdp__lock_give(&s->lock);
    return left;
}

/* The chunk is written; after a failure nothing is left to write, nor to copy. */
CDP__PRIVATE void cdp__ck_written(cdp__ck_save *s, cdp_status st) {
    cdp__lock_take(&s->lock);
    s->busy = s->live = false;
    if (st != CDP_OK) {
        s->entry = s->tensor_count;
        s->rest = 0;
    }
    cdp__ck_signal(s);
    cdp__lock_give(&s->lock);
}

/* C3: syncs and closes the file that was written. */
CDP__PRIVATE cdp_status cdp__ck_end_file(cdp__ck_save *s, bool sync) {
    const cdp_os *const os = s->disk.os;
    const uint64_t began = os->now_ns(os->user);
    char path[CDP__CK_PATH];
    int32_t err = 0;
    if (s->file < 0) return CDP_OK;
    if (sync) err = cdp__ck_sync(&s->disk, s->file);
    s->t.files[s->file_index].synced = sync;
    s->info.sync_ns += os->now_ns(os->user) - began;
    cdp__ck_close_file(&s->disk, s->file, &err);
    s->file = -1;
    cdp__ck_path(path, s->folder, s->t.text + s->t.files[s->file_index].name);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* Makes a file the one that is written. */
CDP__PRIVATE cdp_status cdp__ck_file_of(cdp__ck_save *s, uint32_t file) {
    char path[CDP__CK_PATH];
    int32_t err;
    if (s->file >= 0 && s->file_index == file) return CDP_OK;
    if (cdp__ck_end_file(s, true) != CDP_OK) return cdp_last_error()->status;
    cdp__ck_path(path, s->folder, s->t.text + s->t.files[file].name);
    s->file_index = file;
    err = cdp__ck_open_file(&s->disk, path, CDP_FILE_WRITE, &s->file);
    if (err == EACCES && s->t.files[file].linked) /* somebody protects old steps; for its sync */
        err = cdp__ck_open_file(&s->disk, path, 0, &s->file);
    if (err == ENOENT)
        return cdp_error_set(CDP_ERR_IO, -1, err,
            "cdp_ckpt_save: rank 0 has made %s, and this rank does not see it: all ranks must "
            "share the path",
            path);
    return err ? cdp__ck_io(err, "cannot write", path) : CDP_OK;
}

/* Rank 0 has written headers: files of which it writes nothing else are synced, too. */
CDP__PRIVATE cdp_status cdp__ck_sync_headers(cdp__ck_save *s) {
    cdp_status st = cdp__ck_end_file(s, true);
    uint32_t i;
    if (cdp_rank(s->group)) return st;
    for (i = 0; st == CDP_OK && i < s->tensor_files; ++i) {
        if (s->t.files[i].synced) continue;
        st = cdp__ck_file_of(s, i);
        if (st == CDP_OK) st = cdp__ck_end_file(s, true);
    }
    return st;
}

/* Writes a chunk, and sums each part of it while the cache has it. */
CDP__PRIVATE cdp_status cdp__ck_write_chunk(cdp__ck_save *s, const cdp__ck_chunk *k) {
    const uint64_t elem = cdp__dtype_row_of(k->e->dtype)->bytes, bytes = k->run.count * elem;
    const uint64_t slab = cdp__ck_slab_elements(&s->t, k->e);
    const cdp_status st = cdp__ck_file_of(s, k->e->file);
    uint64_t i, n;
    if (st != CDP_OK) return st;
    for (i = 0; i < k->run.count; i += n) {
        const uint64_t at = k->run.at + i;
        const uint8_t *const from = k->from + i * elem;
        int32_t err;
        n = cdp__min(k->run.count - i, CDP__CK_CALL / elem);
        cdp__ck_sum_slabs(&s->c->weights, from, elem, at, n, slab, s->t.sums + k->e->first_sum);
        err = cdp__ck_write(&s->disk, s->file, k->e->at + at * elem, from, n * elem);
        if (err) {
            char path[CDP__CK_PATH];
            cdp__ck_path(path, s->folder, cdp__ck_file_name(&s->t, k->e));
            return cdp__ck_io(err, "cannot write", path);
        }
    }
    s->info.bytes_written += bytes;
    cdp__ck_progressed(&s->c->desc, &s->progress, bytes);
    return CDP_OK;
}

/* C2, C3: writes one chunk of this rank. PENDING: there may be more. */
CDP__PRIVATE cdp_status cdp__ck_write_some(cdp__ck_save *s) {
    const cdp_os *const os = s->disk.os;
    cdp__ck_chunk k;
    cdp_status st;
    if (!s->began_ns) s->began_ns = os->now_ns(os->user);
    if (cdp__ck_next(s, &k)) {
        st = cdp__ck_write_chunk(s, &k);
        cdp__ck_written(s, st);
        if (st == CDP_OK) return CDP_PENDING;
        (void)cdp__ck_end_file(s, false);
        return st;
    }
    st = cdp__ck_sync_headers(s);
    s->info.write_ns = os->now_ns(os->user) - s->began_ns - s->info.sync_ns;
    return st;
}

/* ---- copies ---- */

/* Copies what no chunk took yet to `to`: the last entries first, because the writer goes on with
   the first ones. The lock is held. Returns how many bytes. */
CDP__PRIVATE uint64_t cdp__ck_copy_shares(cdp__ck_save *s, uint8_t *to) {
    uint64_t used = 0, k;
    for (k = s->tensor_count; k > s->entry;) {
        cdp__ck_share *const h = &s->shares[--k];
        const uint64_t elem = cdp__dtype_row_of(s->t.entries[k].dtype)->bytes;
        const uint64_t first = k == s->entry ? s->place : h->p.first;
        const uint64_t bytes = (h->p.last - first) * elem;
        if (!bytes || h->copied) continue;
        s->claimed = k;
        cdp__lock_give(&s->lock);
        memcpy(to + used, h->at + (first - h->first) * elem, (size_t)bytes);
        cdp__lock_take(&s->lock);
        h->at = to + used;
        h->first = first;
        h->copied = true;
        used += bytes;
        s->claimed = CDP__CK_NOTHING;
        cdp__ck_signal(s);
    }
    return used;
}

/* ---- >>checkpoint/unchanged: files that have not changed since the newest step --------------- */

/* Knows: sums of what is saved, and the newest step in the folder. Promises: all ranks leave out
   the same files; where the older step cannot be read, all are written. */

/* Sums what this rank would write of an entry. */
CDP__PRIVATE void cdp__ck_sum_share(cdp__ck_save *s, uint64_t entry) {
    const cdp__ck_entry *const e = &s->t.entries[entry];
    const cdp__ck_share *const h = &s->shares[entry];
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t slab = cdp__ck_slab_elements(&s->t, e);
    uint64_t place = h->p.first;
    while (place < h->p.last) {
        const cdp__ck_run r = cdp__ck_run_at(&h->p, place, h->p.last);
        cdp__ck_sum_slabs(&s->c->weights, h->at + (place - h->first) * elem, elem, r.at, r.count,
            slab, s->t.sums + e->first_sum);
        place += r.count;
    }
}

CDP__PRIVATE bool cdp__ck_same_entry(const cdp__ck_table *t, const cdp__ck_entry *e,
    const cdp__ck_table *old, const cdp__ck_entry *was) {
    return !was->blob && was->dtype == e->dtype && was->ndim == e->ndim && was->at == e->at
        && was->sums == e->sums && memcmp(was->shape, e->shape, e->ndim * sizeof *e->shape) == 0
        && strcmp(cdp__ck_file_name(old, was), cdp__ck_file_name(t, e)) == 0
        && memcmp(old->sums + was->first_sum, t->sums + e->first_sum,
               (size_t)(e->sums * sizeof *t->sums))
        == 0;
}

#define CDP__CK_HELD 64u /* files of an older step that are open at once */

/* Whether the older step has a file of this name and length on disk, which then stays open: the
   step may be removed before the file is linked. Of many files the first ones alone stay open. */
CDP__PRIVATE bool cdp__ck_is_there(cdp__ck_save *s, cdp__ck_file *f, uint32_t *held) {
    const cdp_os *const os = s->disk.os;
    char path[CDP__CK_PATH];
    cdp_file_info info;
    int32_t fd, err;
    cdp__ck_path(path, s->from, s->t.text + f->name);
    err = cdp__ck_open_file(&s->disk, path, 0, &fd);
    if (err) return false;
    err = -os->files.file_info(os->user, fd, &info);
    if (!err && info.regular && info.bytes == f->bytes && *held < CDP__CK_HELD) {
        f->held = fd + 1;
        ++*held;
        return true;
    }
    cdp__ck_close_file(&s->disk, fd, &err);
    return !err && info.regular && info.bytes == f->bytes;
}

/* Marks the files that the older step has; entries of a file are all of it. */
CDP__PRIVATE void cdp__ck_mark_same(cdp__ck_save *s, const cdp__ck_table *old, uint8_t *marks) {
    uint64_t i;
    uint32_t held = 0;
    if (old->slab != s->t.slab) return;
    memset(marks, 1, (size_t)s->tensor_files);
    for (i = 0; i < s->tensor_count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        const cdp__ck_entry *const was = cdp__ck_look(old, cdp__ck_name(&s->t, e));
        if (!was || !cdp__ck_same_entry(&s->t, e, old, was)) marks[e->file] = 0;
    }
    for (i = 0; i < s->tensor_files; ++i)
        if (marks[i]) marks[i] = cdp__ck_is_there(s, &s->t.files[i], &held);
}

/* Rank 0: marks what is the same in the newest step; nothing, if that cannot be read. */
CDP__PRIVATE void cdp__ck_mark(cdp__ck_save *s, uint8_t *marks) {
    cdp__ck_table old;
    uint64_t step;
    int32_t err;
    char name[64];
    if (cdp__ck_newest(&s->disk, s->c->path, UINT64_MAX, &step)) return;
    cdp__ck_step_name(name, step);
    cdp__ck_path(s->from, s->c->path, name);
    cdp__ck_table_open(&old, s->disk.os);
    if (cdp__ck_describe(&s->disk, s->from, &old, &err)) cdp__ck_mark_same(s, &old, marks);
    cdp__ck_table_close(&old);
}

/* Nothing of a marked file is written or copied. Its sums are counted once, by rank 0, those of
   others again while they are written. */
CDP__PRIVATE void cdp__ck_leave_out(cdp__ck_save *s, const uint8_t *marks) {
    uint64_t i;
    for (i = 0; i < s->tensor_files; ++i) {
        s->t.files[i].linked = marks[i] != 0;
        s->info.linked_files += marks[i];
    }
    for (i = 0; i < s->tensor_count; ++i) {
        const cdp__ck_entry *const e = &s->t.entries[i];
        cdp__ck_piece *const p = &s->shares[i].p;
        const bool linked = marks[e->file] != 0;
        if (!linked || cdp_rank(s->group))
            memset(s->t.sums + e->first_sum, 0, (size_t)(e->sums * sizeof *s->t.sums));
        if (!linked) continue;
        s->info.linked_bytes += e->bytes;
        s->rest -= (p->last - p->first) * cdp__dtype_row_of(e->dtype)->bytes;
        p->last = p->first;
    }
    s->progress.total = s->rest;
}

/* Leaves out what has not changed. Collective, before blobs are added. */
CDP__PRIVATE cdp_status cdp__ck_unchanged(cdp__ck_save *s) {
    uint8_t *const marks = (uint8_t *)cdp__alloc_zero(s->t.os, s->tensor_files + 1);
    cdp_status st = CDP_OK;
    uint64_t i;
    if (!marks) st = cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory");
    st = cdp__ck_verdict(s->group, st);
    for (i = 0; st == CDP_OK && i < s->tensor_count; ++i)
        cdp__ck_sum_share(s, i);
    if (st == CDP_OK && s->tensor_sums)
        st =
            cdp_allreduce(s->group, NULL, s->t.sums, s->tensor_sums, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    if (st == CDP_OK && cdp_rank(s->group) == 0) cdp__ck_mark(s, marks);
    if (st == CDP_OK && s->tensor_files)
        st = cdp_broadcast(s->group, marks, s->tensor_files, CDP_DTYPE_U8, 0);
    if (st == CDP_OK) cdp__ck_leave_out(s, marks);
    cdp__free(s->t.os, marks);
    return st;
}

/* ---- >>checkpoint/run: a save as a machine that a call, a thread or frames drive ------------- */

/* Knows: what follows what. Promises: a step does one thing and starts at most one operation of the
   group; all ranks end with the same status and text, unless the group failed. */

/* The group failed, or this rank could not start an operation. */
CDP__PRIVATE void cdp__ck_give_up(cdp__ck_save *s, cdp_status st) {
    s->status = st;
    s->error = *cdp_last_error();
    s->phase = CDP__CK_DO_UNDO;
}

CDP__PRIVATE void cdp__ck_flies(cdp__ck_save *s, cdp_status started, cdp__ck_phase then) {
    s->flying = started == CDP_OK;
    s->phase = then;
    if (started != CDP_OK) cdp__ck_give_up(s, started);
}

/* All ranks bring their status; the save goes on with `next` if none of them failed. */
CDP__PRIVATE void cdp__ck_vote(cdp__ck_save *s, cdp_status mine, cdp__ck_phase next) {
    s->failed = mine == CDP_OK ? UINT32_MAX : cdp_rank(s->group);
    if (mine != CDP_OK) cdp__ck_word_fill(&s->word, s->group, cdp_last_error(), false);
    s->next = next;
    cdp__ck_flies(s,
        cdp_allreduce_async(
            s->group, &s->failed, &s->first, 1, CDP_DTYPE_U32, CDP_REDUCE_MIN, &s->work),
        CDP__CK_DO_VOTED);
}

CDP__PRIVATE void cdp__ck_voted(cdp__ck_save *s) {
    if (s->first == UINT32_MAX)
        s->phase = s->next;
    else
        cdp__ck_flies(s,
            cdp_broadcast_async(
                s->group, &s->word, sizeof s->word, CDP_DTYPE_U8, s->first, &s->work),
            CDP__CK_DO_TOLD);
}

CDP__PRIVATE void cdp__ck_add_sums(cdp__ck_save *s) {
    s->phase = CDP__CK_DO_COMMIT;
    if (s->tensor_sums)
        cdp__ck_flies(s,
            cdp_allreduce_async(
                s->group, NULL, s->t.sums, s->tensor_sums, CDP_DTYPE_U64, CDP_REDUCE_SUM, &s->work),
            CDP__CK_DO_COMMIT);
}

CDP__PRIVATE void cdp__ck_write_step(cdp__ck_save *s) {
    cdp_status st;
    if (cdp_rank(s->group) && !s->folder[0]) cdp__ck_set_folder(s);
    st = cdp__ck_write_some(s);
    if (st != CDP_PENDING) cdp__ck_vote(s, st, CDP__CK_DO_SUMS);
}

/* After the last vote: older steps beyond `keep` go; what stays is removed after the next save. */
CDP__PRIVATE void cdp__ck_end(cdp__ck_save *s, bool root) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    (void)cdp__ck_end_file(s, false);
    cdp__ck_written(s, CDP_ERR_STATE); /* nothing is left to copy */
    if (root && s->status == CDP_OK && d->keep)
        cdp__ck_sweep_steps(&s->disk, s->c->path, s->step, d->keep, d->keep_every);
    if (root && s->status != CDP_OK) cdp__ck_undo(s);
    cdp__ck_unlock(s);
    s->info.writes = s->disk.writes;
    s->phase = CDP__CK_DO_ENDED;
}

CDP__PRIVATE void cdp__ck_step(cdp__ck_save *s) {
    const bool root = cdp_rank(s->group) == 0;
    switch (s->phase) {
    case CDP__CK_DO_BEGIN:
        cdp__ck_vote(s, root ? cdp__ck_begin(s) : CDP_OK, CDP__CK_DO_NAME);
        break;
    case CDP__CK_DO_NAME:
        cdp__ck_flies(s, cdp_broadcast_async(s->group, &s->id, 1, CDP_DTYPE_U64, 0, &s->work),
            CDP__CK_DO_WRITE);
        break;
    case CDP__CK_DO_WRITE: cdp__ck_write_step(s); break;
    case CDP__CK_DO_SUMS: cdp__ck_add_sums(s); break;
    case CDP__CK_DO_COMMIT:
        cdp__ck_vote(s, root ? cdp__ck_commit(s) : CDP_OK, CDP__CK_DO_SWEEP);
        break;
    case CDP__CK_DO_VOTED: cdp__ck_voted(s); break;
    case CDP__CK_DO_TOLD:
        s->told = true;
        cdp__ck_give_up(s, cdp__ck_word_take(&s->word));
        break;
    case CDP__CK_DO_SWEEP:
    case CDP__CK_DO_UNDO: cdp__ck_end(s, root); break;
    case CDP__CK_DO_ENDED: break;
    }
}

/* Waits for the operation in flight. False: the deadline passed. */
CDP__PRIVATE bool cdp__ck_landed(cdp__ck_save *s, uint64_t deadline) {
    const uint64_t now = s->t.os->now_ns(s->t.os->user);
    cdp_status st;
    if (deadline == CDP__NEVER)
        st = cdp_work_wait(s->work);
    else if (deadline <= now)
        st = cdp_work_test(s->work);
    else
        st = cdp_work_wait_for(
            s->work, (uint32_t)cdp__min((deadline - now) / CDP__MS + 1, CDP_NO_TIMEOUT - 1));
    if (st == CDP_PENDING) return false;
    s->flying = false;
    if (st != CDP_OK) cdp__ck_give_up(s, st);
    return true;
}

/* Goes on until the end (true) or the deadline; at least one step is done, if one can be. */
CDP__PRIVATE bool cdp__ck_run_save(cdp__ck_save *s, uint64_t deadline) {
    const cdp_os *const os = s->t.os;
    do {
        if (s->flying && !cdp__ck_landed(s, deadline)) return false;
        cdp__ck_step(s);
    } while (s->phase != CDP__CK_DO_ENDED
        && (deadline == CDP__NEVER || os->now_ns(os->user) < deadline));
    return s->phase == CDP__CK_DO_ENDED;
}

/* ---- >>checkpoint/background: saving: in the call, in a thread of its own, or in frames ------ */

/* Knows: who drives a save, and when the program's memory is its own again. Promises: one save at a
   time; how it ended reaches the program at the next call, on all ranks. */

/* ---- before and after ---- */

CDP__PRIVATE cdp_status cdp__ck_save_plan(cdp__ck_save *s) {
    cdp_ckpt *const c = s->c;
    cdp_status st = cdp__ck_plan(&s->t, &c->desc);
    uint64_t i;
    if (st == CDP_OK) st = cdp__ck_plan_limits(&s->t);
    if (st == CDP_OK) st = cdp__ck_memory_check(c);
    st = cdp__ck_verdict(c->desc.group, st);
    if (st == CDP_OK) st = cdp__ck_agree(c, s->step, c->path);
    if (st == CDP_OK) st = cdp__ck_covered(c, &s->t);
    if (st != CDP_OK) return st;
    s->tensor_files = s->info.files = s->t.file_count;
    s->tensor_sums = s->t.sum_count;
    s->t.step = s->info.step = s->step;
    for (i = 0; i < s->t.count; ++i)
        s->info.total_bytes += s->t.entries[i].bytes;
    if (!cdp__ck_shares(s)) st = cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory");
    st = cdp__ck_verdict(c->desc.group, st);
    if (st == CDP_OK && c->desc.incremental) st = cdp__ck_unchanged(s);
    s->info.predicted_us = cdp__ck_predict(&c->desc, s->info.total_bytes - s->info.linked_bytes);
    return st;
}

CDP__PRIVATE void cdp__ck_save_close(cdp__ck_save *s) {
    const cdp_os *const os = s->t.os;
    const cdp_error kept = *cdp_last_error();
    if (s->thread) os->threads.join(os, s->thread);
    cdp__ck_let_go(s);
    if (s->group != s->c->desc.group) cdp_group_destroy(s->group);
    if (s->cond) os->threads.cond_destroy(os, s->cond);
    cdp__lock_close(&s->lock);
    cdp__free(os, s->blobs);
    cdp__free(os, s->shares);
    cdp__ck_table_close(&s->t);
    cdp__free(os, s);
    *cdp__error_slot() = kept;
}

/* Ends a save that has ended, and says how. */
CDP__PRIVATE cdp_status cdp__ck_save_end(cdp__ck_save *s) {
    const cdp_status st = s->status;
    s->info.stage_bytes = s->stage_bytes;
    s->info.stall_ns = s->stall_ns;
    s->c->info = s->info;
    s->c->saving = NULL;
    if (st != CDP_OK) *cdp__error_slot() = s->error;
    cdp__ck_save_close(s);
    return st;
}

CDP__PRIVATE void cdp__ck_thread(void *arg) {
    cdp__ck_save *const s = (cdp__ck_save *)arg;
    (void)cdp__ck_run_save(s, CDP__NEVER);
    cdp__lock_take(&s->lock);
    s->ended = true;
    cdp__ck_signal(s);
    cdp__lock_give(&s->lock);
}

/* True: it has ended. */
CDP__PRIVATE bool cdp__ck_until(cdp__ck_save *s, uint64_t deadline) {
    const cdp_os *const os = s->t.os;
    bool ended;
    if (!s->thread) return cdp__ck_run_save(s, deadline);
    cdp__lock_take(&s->lock);
    while (!s->ended && os->now_ns(os->user) < deadline)
        os->threads.cond_wait(os->user, s->cond, s->lock.mutex, deadline);
    ended = s->ended;
    cdp__lock_give(&s->lock);
    return ended;
}

/* Before any other call: how an earlier save ended, on all ranks. */
CDP__PRIVATE cdp_status cdp__ck_enter(cdp_ckpt *c, const char *call) {
    uint32_t runs, any = 0;
    bool told;
    cdp_status st = CDP_OK;
    if (!c->asynced) return CDP_OK;
    runs = c->saving && !cdp__ck_until(c->saving, 0);
    st = cdp_allreduce(c->desc.group, &runs, &any, 1, CDP_DTYPE_U32, CDP_REDUCE_MAX);
    if (st != CDP_OK) return st;
    if (any)
        return cdp_error_set(CDP_ERR_BUSY, -1, 0,
            "%s: an earlier save is still being written; call cdp_ckpt_wait() before", call);
    told = c->saving && c->saving->told;
    return cdp__ck_verdict_of(
        c->desc.group, c->saving ? cdp__ck_save_end(c->saving) : CDP_OK, told);
}

/* Plans a save and gathers blobs; *out is NULL after a failure. All ranks return the same. */
CDP__PRIVATE cdp_status cdp__ck_save_open(
    cdp_ckpt *c, uint64_t step, const char *call, cdp__ck_save **out) {
    cdp__ck_save *s;
    cdp_status st = cdp__ck_alive(c, call);
    const cdp_os *os;
    *out = NULL;
    if (st != CDP_OK) return st;
    if (step > (uint64_t)INT64_MAX / 32)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "%s: step %llu is too large", call, (unsigned long long)step);
    st = cdp__ck_enter(c, call);
    if (st != CDP_OK) return st;
    os = cdp_group_desc_of(c->desc.group)->os;
    s = (cdp__ck_save *)cdp__alloc_zero(os, sizeof *s);
    st = s ? CDP_OK : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "%s: out of memory", call);
    if (st != CDP_OK) return cdp__ck_verdict(c->desc.group, st);
    s->c = c;
    s->group = c->desc.group;
    s->disk = c->disk;
    s->step = step;
    s->lock_file = s->file = -1;
    s->claimed = CDP__CK_NOTHING;
    cdp__ck_table_open(&s->t, os);
    cdp__ck_step_name(s->name, step);
    st = cdp__ck_save_plan(s);
    if (st == CDP_OK) st = cdp__ck_verdict(c->desc.group, cdp__ck_blobs(s));
    if (st == CDP_OK)
        *out = s;
    else
        cdp__ck_save_close(s);
    return st;
}

/* ---- in the background ---- */

/* What a save in the background has for itself. */
CDP__PRIVATE cdp_status cdp__ck_apart(cdp__ck_save *s, bool threads) {
    const cdp_ckpt_desc *const d = &s->c->desc;
    const uint32_t n = cdp_size(d->group);
    cdp_group *own = NULL;
    uint32_t *const ranks = (uint32_t *)cdp__alloc(s->t.os, n * sizeof *ranks), r;
    cdp_status st;
    if (!ranks) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_save_async: out of memory");
    for (r = 0; r < n; ++r)
        ranks[r] = r;
    st = cdp_group_new(d->group, ranks, n, &own);
    cdp__free(s->t.os, ranks);
    if (st != CDP_OK) return st;
    s->group = own;
    if (!cdp__lock_open(&s->lock, s->t.os, threads)) st = CDP_ERR_NOMEM;
    if (st == CDP_OK && threads) {
        s->cond = s->t.os->threads.cond_create(s->t.os);
        if (!s->cond) st = CDP_ERR_NOMEM;
    }
    return st == CDP_OK
        ? st
        : cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_save_async: out of memory for a lock");
}

/* Waits until at most `most` bytes are neither written nor copied, or, with `live`, until no chunk
   is being written from the program's memory. TIMEOUT: of the group. */
CDP__PRIVATE cdp_status cdp__ck_stage_wait(cdp__ck_save *s, uint64_t most, bool live) {
    const cdp_os *const os = s->t.os;
    const uint32_t timeout = cdp_group_desc_of(s->c->desc.group)->timeout_ms;
    const uint64_t deadline = cdp__deadline(os, timeout);
    bool waits;
    cdp__lock_take(&s->lock);
    while ((waits = live ? s->live : s->rest > most) && os->now_ns(os->user) < deadline) {
        if (s->thread)
            os->threads.cond_wait(os->user, s->cond, s->lock.mutex, deadline);
        else
            (void)cdp__ck_run_save(s, 0);
    }
    cdp__lock_give(&s->lock);
    if (!waits) return CDP_OK;
    return cdp_error_set(CDP_ERR_TIMEOUT, -1, 0,
        "cdp_ckpt_staged: %u ms were too short for what must be written first; set a longer "
        "timeout of the group, or a larger stage_bytes",
        (unsigned)timeout);
}

/* The most memory for copies. */
CDP__PRIVATE uint64_t cdp__ck_stage_most(const cdp__ck_save *s) {
    return s->c->desc.stage_bytes ? s->c->desc.stage_bytes : UINT64_MAX;
}

/* Makes room for copies of so many bytes; false: there is no memory. */
CDP__PRIVATE bool cdp__ck_stage_memory(cdp__ck_save *s, uint64_t need) {
    cdp_ckpt *const c = s->c;
    if (need <= c->stage_room) return true;
    cdp__free(s->t.os, c->stage);
    c->stage = cdp__alloc(s->t.os, need);
    c->stage_room = c->stage ? need : 0;
    return c->stage != NULL;
}

/* Makes room for copies of what is left; without it, waits until that is written. */
CDP__PRIVATE cdp_status cdp__ck_stage_room(cdp__ck_save *s) {
    uint64_t need;
    const cdp_status st = cdp__ck_stage_wait(s, cdp__ck_stage_most(s), false);
    if (st != CDP_OK) return st;
    cdp__lock_take(&s->lock);
    need = s->rest;
    cdp__lock_give(&s->lock);
    return cdp__ck_stage_memory(s, need) ? CDP_OK : cdp__ck_stage_wait(s, 0, false);
}

/* After OK the program may change its memory. */
CDP__PRIVATE cdp_status cdp__ck_stage(cdp__ck_save *s) {
    cdp_status st;
    if (s->staged) return CDP_OK;
    if (!s->copied) {
        st = cdp__ck_stage_room(s);
        if (st != CDP_OK) return st;
        cdp__lock_take(&s->lock);
        if (s->rest) s->stage_bytes = cdp__ck_copy_shares(s, (uint8_t *)s->c->stage);
        cdp__lock_give(&s->lock);
        s->copied = true;
    }
    st = cdp__ck_stage_wait(s, 0, true); /* a chunk of at most 8 MiB */
    s->staged = st == CDP_OK;
    return st;
}

/* Without threads a rank that waits until something is written needs frames of all ranks, which
   need not come. So all have their memory for copies from the start, or none saves; and where
   copies would not fit stage_bytes on some rank, all write in the call (*now). */
CDP__PRIVATE cdp_status cdp__ck_frames(cdp__ck_save *s, bool threads, uint32_t *now) {
    cdp_group *const g = s->c->desc.group;
    uint32_t mine = !threads && s->rest > cdp__ck_stage_most(s);
    cdp_status st = CDP_OK;
    if (!threads && !mine && !cdp__ck_stage_memory(s, s->rest))
        st = cdp_error_set(CDP_ERR_NOMEM, -1, 0,
            "cdp_ckpt_save_async: out of memory for a copy of %llu bytes; set stage_bytes, or call "
            "cdp_ckpt_save()",
            (unsigned long long)s->rest);
    st = cdp__ck_verdict(g, st);
    if (st == CDP_OK) st = cdp_allreduce(g, &mine, now, 1, CDP_DTYPE_U32, CDP_REDUCE_MAX);
    return st;
}

/* Begins to write. A copy that fits is made before, so that both do not share the memory. */
CDP__PRIVATE cdp_status cdp__ck_launch(cdp__ck_save *s, bool threads, bool now) {
    const cdp_os *const os = s->t.os;
    const bool late = s->c->desc.late;
    cdp_status st = CDP_OK;
    if (!late && s->rest <= cdp__ck_stage_most(s) && cdp__ck_stage_memory(s, s->rest))
        st = cdp__ck_stage(s);
    if (threads) s->thread = os->threads.start(os, cdp__ck_thread, s);
    /* without a thread it is written here; others wait meanwhile */
    if (threads ? !s->thread : now) (void)cdp__ck_run_save(s, CDP__NEVER);
    return st == CDP_OK && !late ? cdp__ck_stage(s) : st;
}

/* ---- calls ---- */

CDP_API cdp_status cdp_ckpt_save(cdp_ckpt *c, uint64_t step) {
    cdp__ck_save *s;
    const cdp_status st = cdp__ck_save_open(c, step, "cdp_ckpt_save", &s);
    if (st != CDP_OK) return st;
    (void)cdp__ck_run_save(s, CDP__NEVER);
    return cdp__ck_save_end(s);
}

CDP_API cdp_status cdp_ckpt_save_async(cdp_ckpt *c, uint64_t step) {
    const cdp_os *os;
    uint64_t began;
    cdp__ck_save *s;
    uint32_t now = 0;
    bool threads;
    cdp_status st = cdp__ck_alive(c, "cdp_ckpt_save_async");
    if (st != CDP_OK) return st;
    os = cdp_group_desc_of(c->desc.group)->os;
    began = os->now_ns(os->user);
    threads = os->threads.start && !cdp_group_desc_of(c->desc.group)->no_thread;
    st = cdp__ck_save_open(c, step, "cdp_ckpt_save_async", &s);
    if (st != CDP_OK) return st;
    st = cdp__ck_verdict(c->desc.group, cdp__ck_apart(s, threads));
    if (st == CDP_OK) st = cdp__ck_frames(s, threads, &now);
    if (st != CDP_OK) {
        cdp__ck_save_close(s);
        return st;
    }
    c->asynced = true;
    c->saving = s;
    st = cdp__ck_launch(s, threads, now != 0);
    s->stall_ns += os->now_ns(os->user) - began;
    return st;
}

CDP_API cdp_status cdp_ckpt_staged(cdp_ckpt *c) {
    const cdp_os *os;
    uint64_t began;
    cdp_status st = cdp__ck_alive(c, "cdp_ckpt_staged");
    if (st != CDP_OK) return st;
    if (!c->saving || c->saving->staged) return CDP_OK;
    os = c->saving->t.os;
    began = os->now_ns(os->user);
    st = cdp__ck_stage(c->saving);
    c->saving->stall_ns += os->now_ns(os->user) - began;
    return st;
}

CDP_API cdp_status cdp_ckpt_wait(cdp_ckpt *c, uint32_t timeout_ms) {
    const cdp_os *os;
    uint64_t began;
    const cdp_status st = cdp__ck_alive(c, "cdp_ckpt_wait");
    bool ended;
    if (st != CDP_OK) return st;
    if (!c->saving) return CDP_OK;
    os = c->saving->t.os;
    began = os->now_ns(os->user);
    ended = cdp__ck_until(c->saving, cdp__deadline(os, timeout_ms));
    c->saving->stall_ns += os->now_ns(os->user) - began;
    return ended ? cdp__ck_save_end(c->saving) : CDP_PENDING;
}

CDP_API void cdp_ckpt_destroy(cdp_ckpt *c) {
    const cdp_os *os;
    if (!c || cdp__ended(c) || cdp__is_child(c->forks)) return;
    cdp__ended_add(c);
    os = c->memory;
    if (c->saving) {
        const cdp_error kept = *cdp_last_error();
        (void)cdp__ck_until(c->saving, CDP__NEVER);
        (void)cdp__ck_save_end(c->saving);
        *cdp__error_slot() = kept;
    }
    cdp__free(os, c->stage);
    cdp__free(os, c);
}

/* ---- >>checkpoint/zip: archives whose members are not compressed ----------------------------- */

/* Knows: the list at the end of a zip archive that lies in a part of a file. Promises: any bytes
   yield members inside the archive or a reason. Functions return 0 or a positive errno. */

/* Bytes of a list. An archive of one tensor has some 600; a file of many archives is read in time
   that is bounded by their number. */
#define CDP__CK_ZIP_LIST_MAX (1u << 20)

typedef struct cdp__ck_zip {
    cdp__ck_disk *disk;
    cdp__ck_table *t;   /* memory, and why it cannot be read */
    uint64_t at, bytes; /* of the archive in its file */
    int32_t fd;
    uint8_t *list;
    uint64_t list_bytes;
} cdp__ck_zip;

CDP__PRIVATE uint32_t cdp__ck_u16(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

CDP__PRIVATE int32_t cdp__ck_zip_bad(cdp__ck_zip *z, const char *why) {
    (void)cdp__ck_bad(z->t, why);
    return EBADMSG;
}

/* Reads bytes that must lie in the archive. */
CDP__PRIVATE int32_t cdp__ck_zip_read(cdp__ck_zip *z, uint64_t at, void *to, uint64_t bytes) {
    if (at > z->bytes || bytes > z->bytes - at)
        return cdp__ck_zip_bad(z, "a zip archive is shorter than it says");
    return cdp__ck_read(z->disk, z->fd, z->at + at, to, bytes);
}

/* Where the list is, of an archive of more than 4 GiB. */
CDP__PRIVATE int32_t cdp__ck_zip_large(cdp__ck_zip *z, uint64_t *from, uint64_t *size) {
    uint8_t where[20], end[56];
    int32_t err = z->bytes < 42 ? EBADMSG : cdp__ck_zip_read(z, z->bytes - 42, where, sizeof where);
    if (!err && cdp__get_u32(where) != 0x07064b50u) err = EBADMSG;
    if (!err) err = cdp__ck_zip_read(z, cdp__get_u64(where + 8), end, sizeof end);
    if (!err && cdp__get_u32(end) != 0x06064b50u) err = EBADMSG;
    if (err) (void)cdp__ck_zip_bad(z, "a large zip archive has no list");
    if (err) return err;
    *size = cdp__get_u64(end + 40);
    *from = cdp__get_u64(end + 48);
    return 0;
}

/* Reads the list of members. cdp__ck_zip_close() in any case. */
CDP__PRIVATE int32_t cdp__ck_zip_open(cdp__ck_zip *z) {
    uint8_t end[22];
    uint64_t from, size;
    int32_t err;
    if (z->bytes < sizeof end) return cdp__ck_zip_bad(z, "a zip archive is too short");
    err = cdp__ck_zip_read(z, z->bytes - sizeof end, end, sizeof end);
    if (err) return err;
    if (cdp__get_u32(end) != 0x06054b50u)
        return cdp__ck_zip_bad(z, "a zip archive does not end with its list");
    size = cdp__get_u32(end + 12);
    from = cdp__get_u32(end + 16);
    if (size == UINT32_MAX || from == UINT32_MAX || cdp__ck_u16(end + 10) == 0xffff)
        err = cdp__ck_zip_large(z, &from, &size);
    if (!err && (size > CDP__CK_ZIP_LIST_MAX || size > z->bytes))
        err = cdp__ck_zip_bad(z, "the list of a zip archive is too long");
    if (err) return err;
    z->list = (uint8_t *)cdp__alloc(z->t->os, size);
    if (!z->list) {
        (void)cdp__ck_none(z->t);
        return ENOMEM;
    }
    z->list_bytes = size;
    return cdp__ck_zip_read(z, from, z->list, size);
}

CDP__PRIVATE void cdp__ck_zip_close(cdp__ck_zip *z) {
    cdp__free(z->t->os, z->list);
    z->list = NULL;
}

/* The numbers of a member that fit no 32 bits: they stand in this order in a field of their own. */
CDP__PRIVATE bool cdp__ck_zip_wide(const uint8_t *field, uint32_t bytes, uint64_t *const v[3]) {
    uint32_t i, at = 4, n;
    for (;; field += n, bytes -= n) {
        if (bytes < 4) return false;
        n = cdp__ck_u16(field + 2) + 4;
        if (n > bytes) return false;
        if (cdp__ck_u16(field) == 1) break;
    }
    for (i = 0; i < 3; ++i) {
        if (*v[i] != UINT32_MAX) continue;
        if (at + 8 > n) return false;
        *v[i] = cdp__get_u64(field + at);
        at += 8;
    }
    return true;
}

/* Where a member lies in the file, of which `h` is in the list. */
CDP__PRIVATE int32_t cdp__ck_zip_member(
    cdp__ck_zip *z, const uint8_t *h, uint64_t *at, uint64_t *bytes) {
    uint64_t whole = cdp__get_u32(h + 24), stored = cdp__get_u32(h + 20);
    uint64_t from = cdp__get_u32(h + 42);
    uint64_t *const v[3] = {&whole, &stored, &from};
    uint8_t head[30];
    int32_t err;
    if (cdp__ck_u16(h + 10)) return cdp__ck_zip_bad(z, "a member of a zip archive is compressed");
    if ((whole == UINT32_MAX || stored == UINT32_MAX || from == UINT32_MAX)
        && !cdp__ck_zip_wide(h + 46 + cdp__ck_u16(h + 28), cdp__ck_u16(h + 30), v))
        return cdp__ck_zip_bad(z, "a large member of a zip archive has no size");
    err = cdp__ck_zip_read(z, from, head, sizeof head);
    if (err) return err;
    if (cdp__get_u32(head) != 0x04034b50u || whole != stored)
        return cdp__ck_zip_bad(z, "a member of a zip archive has no header");
    from += sizeof head + cdp__ck_u16(head + 26) + cdp__ck_u16(head + 28);
    if (from > z->bytes || whole > z->bytes - from)
        return cdp__ck_zip_bad(z, "a member of a zip archive is not in it");
    *at = z->at + from;
    *bytes = whole;
    return 0;
}

/* Finds the member of this name, below any folder. ENOENT: there is none. */
CDP__PRIVATE int32_t cdp__ck_zip_find(
    cdp__ck_zip *z, const char *name, uint64_t length, uint64_t *at, uint64_t *bytes) {
    uint64_t i = 0;
    while (z->list_bytes - i >= 46) {
        const uint8_t *const h = z->list + i, *const own = h + 46;
        const uint32_t n = cdp__ck_u16(h + 28);
        const uint64_t all = 46 + (uint64_t)n + cdp__ck_u16(h + 30) + cdp__ck_u16(h + 32);
        const uint8_t *slash;
        if (cdp__get_u32(h) != 0x02014b50u || all > z->list_bytes - i)
            return cdp__ck_zip_bad(z, "the list of a zip archive is damaged");
        slash = n ? (const uint8_t *)memchr(own, '/', n) : NULL;
        if (slash && (uint64_t)(own + n - slash - 1) == length
            && memcmp(slash + 1, name, (size_t)length) == 0)
            return cdp__ck_zip_member(z, h, at, bytes);
        i += all;
    }
    return ENOENT;
}

/* ---- >>checkpoint/torch: what PyTorch's distributed checkpoints say -------------------------- */

/* Knows: the classes in `.metadata`, which lists tensors and the archives that have their blocks,
   and the pickle in such an archive, which says where the elements are. Promises: nothing of
   Python is looked up or called; any bytes yield entries with blocks inside their tensors, or a
   reason. */

#define CDP__CK_METADATA ".metadata"
#define CDP__CK_METADATA_MAX (1u << 30) /* bytes */
#define CDP__CK_PICKLE_MAX (1u << 20)   /* of one tensor */
#ifndef CDP__CK_LOOKS
#define CDP__CK_LOOKS (1u << 26) /* most comparisons of places; PyTorch's order needs one each */
#endif

/* ---- values */

static const struct {
    const char *name, *storage; /* of the dtype, and of arrays of it */
    cdp_dtype dtype;
} cdp__ck_torch_dtypes[] = {
    {"float32", "FloatStorage", CDP_DTYPE_F32},
    {"float64", "DoubleStorage", CDP_DTYPE_F64},
    {"float16", "HalfStorage", CDP_DTYPE_F16},
    {"bfloat16", "BFloat16Storage", CDP_DTYPE_BF16},
    {"int64", "LongStorage", CDP_DTYPE_I64},
    {"int32", "IntStorage", CDP_DTYPE_I32},
    {"int16", "ShortStorage", CDP_DTYPE_I16},
    {"int8", "CharStorage", CDP_DTYPE_I8},
    {"uint8", "ByteStorage", CDP_DTYPE_U8},
    {"bool", "BoolStorage", CDP_DTYPE_BOOL},
    {"uint16", "", CDP_DTYPE_U16},
    {"uint32", "", CDP_DTYPE_U32},
    {"uint64", "", CDP_DTYPE_U64},
    {"float8_e4m3fn", "", CDP_DTYPE_F8E4M3},
    {"float8_e5m2", "", CDP_DTYPE_F8E5M2},
    {"complex64", "ComplexFloatStorage", CDP_DTYPE_CF32},
    {"complex128", "ComplexDoubleStorage", CDP_DTYPE_CF64},
};

/* The dtype that a global says; CDP_DTYPE_COUNT: none that is known here. */
CDP__PRIVATE cdp_dtype cdp__ck_torch_dtype(const cdp__tree *v) {
    uint32_t i;
    for (i = 0; i < sizeof cdp__ck_torch_dtypes / sizeof *cdp__ck_torch_dtypes; ++i)
        if (cdp__pk_is(v, "torch", cdp__ck_torch_dtypes[i].name)
            || (*cdp__ck_torch_dtypes[i].storage
                && cdp__pk_is(v, "torch", cdp__ck_torch_dtypes[i].storage)))
            return cdp__ck_torch_dtypes[i].dtype;
    return CDP_DTYPE_COUNT;
}

CDP__PRIVATE bool cdp__ck_unknown(cdp__ck_table *t, const char *why) {
    if (!t->why) {
        t->why = why;
        t->status = CDP_ERR_UNSUPPORTED;
    }
    return false;
}

/* Whether a value is a record of a class of this name, which only PyTorch has. */
CDP__PRIVATE bool cdp__ck_torch_is(const cdp__tree *v, const char *name) {
    return v && v->kind == CDP__TREE_RECORD
        && cdp__tree_is(&v->as.box->items[0].as.box->items[1], name);
}

/* The state of a record; NULL: it has none. */
CDP__PRIVATE const cdp__tree *cdp__ck_torch_state(const cdp__tree *v, const char *name) {
    return cdp__ck_torch_is(v, name) && v->as.box->count > 2 ? &v->as.box->items[2] : NULL;
}

/* Takes a torch.Size, or a tuple, of at most CDP_TENSOR_DIMS numbers. */
CDP__PRIVATE bool cdp__ck_torch_numbers(
    cdp__ck_table *t, const cdp__tree *v, uint64_t *out, uint32_t *count) {
    const cdp__tree_box *list;
    uint64_t i;
    if (cdp__ck_torch_is(v, "Size")) {
        list = cdp__tree_list(&v->as.box->items[1]);
        v = list && list->count ? &list->items[0] : NULL;
    }
    list = cdp__tree_list(v);
    if (!list) return cdp__ck_bad(t, "a size is no tuple");
    if (list->count > CDP_TENSOR_DIMS)
        return cdp__ck_unknown(t, "a tensor has too many dimensions");
    for (i = 0; i < list->count; ++i) {
        if (list->items[i].kind != CDP__TREE_INT || list->items[i].as.whole < 0)
            return cdp__ck_bad(t, "a size is no number");
        out[i] = (uint64_t)list->items[i].as.whole;
    }
    *count = (uint32_t)list->count;
    return true;
}

CDP__PRIVATE bool cdp__ck_torch_number(cdp__ck_table *t, const cdp__tree *v, uint64_t *out) {
    if (!v || v->kind != CDP__TREE_INT || v->as.whole < 0)
        return cdp__ck_bad(t, "a number is missing");
    *out = (uint64_t)v->as.whole;
    return true;
}

/* A text, stored; UINT64_MAX: it is none that can be a name, or out of memory. */
CDP__PRIVATE uint64_t cdp__ck_torch_text(cdp__ck_table *t, const cdp__tree *v) {
    uint64_t at;
    if (!v || v->kind != CDP__TREE_TEXT || v->length > CDP__CK_NAME
        || (v->length && memchr(v->as.text, 0, v->length))) {
        (void)cdp__ck_bad(t, "a name is no text, or too long");
        return UINT64_MAX;
    }
    at = cdp__ck_text(t, v->as.text, v->length);
    if (at != UINT64_MAX && cdp__ck_name_fits(t->text + at)) return at;
    (void)cdp__ck_bad(t, "a name is empty, or not UTF-8");
    return UINT64_MAX;
}

/* ---- .metadata */

/* Adds a block, of which it is not known yet where it is. */
CDP__PRIVATE bool cdp__ck_torch_block(
    cdp__ck_table *t, const cdp__tree *v, const cdp__ck_entry *e, uint64_t *left) {
    const cdp__tree *const state = cdp__ck_torch_state(v, "ChunkStorageMetadata");
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    uint32_t starts, sizes, d;
    cdp__ck_block b;
    memset(&b, 0, sizeof b);
    b.file = UINT32_MAX;
    if (!cdp__ck_torch_numbers(t, cdp__tree_get(state, "offsets"), b.box.start, &starts)
        || !cdp__ck_torch_numbers(t, cdp__tree_get(state, "sizes"), b.box.size, &sizes))
        return false;
    if (starts != e->ndim || sizes != e->ndim)
        return cdp__ck_bad(t, "a block has other dimensions than its tensor");
    for (d = 0; d < e->ndim; ++d)
        if (b.box.start[d] > e->shape[d] || b.box.size[d] > e->shape[d] - b.box.start[d])
            return cdp__ck_bad(t, "a block leaves its tensor");
    (void)cdp__ck_entry_bytes(e->dtype, e->ndim, b.box.size, &b.bytes); /* at most the tensor's */
    if (b.bytes / elem > *left) return cdp__ck_bad(t, "blocks of a tensor overlap");
    *left -= b.bytes / elem;
    return cdp__ck_add_block(t, &b);
}

/* Each coordinate of each dimension has a random weight; the measure of a box is the product, over
   dimensions, of the differences between the weights of its two ends, modulo a prime. Measures of
   boxes that divide a box add up to its own. Of other boxes they do so with a chance of about
   2^-29, whoever has chosen them, as long as the seed is not known. */
CDP__PRIVATE uint64_t cdp__ck_torch_measure(const cdp_box *b, uint32_t ndim, uint64_t seed) {
    const uint64_t prime = 4294967291u; /* the largest of 32 bits */
    uint64_t all = 1;
    uint32_t d;
    for (d = 0; d < ndim; ++d) {
        const uint64_t of = cdp__mix(seed + d);
        const uint64_t from = cdp__mix(of ^ b->start[d]) % prime;
        const uint64_t to = cdp__mix(of ^ (b->start[d] + b->size[d])) % prime;
        all = all * ((to + prime - from) % prime) % prime;
    }
    return all;
}

/* Blocks that have as many elements as their tensor are all of it if none overlaps another. To
   compare each with each would take the square of the time. */
CDP__PRIVATE bool cdp__ck_torch_apart(cdp__ck_table *t, const cdp__ck_entry *e) {
    uint64_t seed = 0, i;
    uint32_t twice;
    cdp_box all;
    memset(&all, 0, sizeof all);
    memcpy(all.size, e->shape, sizeof e->shape);
    if (t->os->random(t->os->user, &seed, sizeof seed) != CDP_OK) seed = 0;
    for (twice = 0; twice < 2; ++twice, seed = cdp__mix(seed)) {
        uint64_t sum = 0;
        for (i = 0; i < e->blocks; ++i)
            sum += cdp__ck_torch_measure(&t->blocks[e->first_block + i].box, e->ndim, seed);
        if (sum % 4294967291u != cdp__ck_torch_measure(&all, e->ndim, seed))
            return cdp__ck_bad(t, "blocks of a tensor overlap");
    }
    return true;
}

/* Takes what there is of a tensor. */
CDP__PRIVATE bool cdp__ck_torch_tensor(cdp__ck_table *t, const cdp__tree *state, cdp__ck_entry *e) {
    const cdp__tree *const properties =
        cdp__ck_torch_state(cdp__tree_get(state, "properties"), "TensorProperties");
    const cdp__tree_box *const members = cdp__tree_list(properties);
    const cdp__tree_box *const blocks = cdp__tree_list(cdp__tree_get(state, "chunks"));
    uint64_t left, i;
    if (!members || !members->count || !blocks)
        return cdp__ck_bad(t, "a tensor has no properties, or no chunks");
    e->dtype = cdp__ck_torch_dtype(&members->items[0]);
    if (e->dtype == CDP_DTYPE_COUNT)
        return cdp__ck_unknown(t, "a tensor has a dtype that is not known here");
    if (!cdp__ck_torch_numbers(t, cdp__tree_get(state, "size"), e->shape, &e->ndim)) return false;
    if (!cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &e->bytes))
        return cdp__ck_bad(t, "a tensor is too large");
    left = e->bytes / cdp__dtype_row_of(e->dtype)->bytes;
    e->first_block = t->block_count;
    e->blocks = blocks->count;
    for (i = 0; i < blocks->count; ++i)
        if (!cdp__ck_torch_block(t, &blocks->items[i], e, &left)) return false;
    if (left) return cdp__ck_bad(t, "the blocks of a tensor are not all of it");
    return cdp__ck_torch_apart(t, e);
}

/* Adds an entry: a tensor, or bytes, whose length is not known yet. */
CDP__PRIVATE bool cdp__ck_torch_entry(
    cdp__ck_table *t, const cdp__tree *name, const cdp__tree *what) {
    const cdp__tree *const tensor = cdp__ck_torch_state(what, "TensorStorageMetadata");
    cdp__ck_entry e;
    memset(&e, 0, sizeof e);
    e.blob = cdp__ck_torch_is(what, "BytesStorageMetadata");
    if (!tensor && !e.blob) return cdp__ck_unknown(t, "an entry is neither a tensor nor bytes");
    e.name = cdp__ck_torch_text(t, name);
    if (e.name == UINT64_MAX) return false;
    e.file = UINT32_MAX;
    if (e.blob) {
        e.dtype = CDP_DTYPE_U8;
        e.ndim = 1;
    }
    return (e.blob || cdp__ck_torch_tensor(t, tensor, &e)) && cdp__ck_add_entry(t, &e);
}

/* Counts comparisons, which in an order that nobody writes would be the square of the file. */
CDP__PRIVATE bool cdp__ck_torch_looks(cdp__ck_table *t, uint64_t count) {
    t->looks += count;
    return t->looks <= CDP__CK_LOOKS
        || cdp__ck_unknown(t, "too many files, or blocks in another order, to compare");
}

/* The number of a file; UINT32_MAX: a mistake. Neighbours mostly are in the same file. */
CDP__PRIVATE uint32_t cdp__ck_torch_file(cdp__ck_table *t, const cdp__tree *v) {
    const uint64_t name = cdp__ck_torch_text(t, v);
    cdp__ck_file *f;
    uint64_t i;
    if (name == UINT64_MAX) return UINT32_MAX;
    if (strpbrk(t->text + name, "/\\:")) {
        (void)cdp__ck_bad(t, "a file has a name with a path");
        return UINT32_MAX;
    }
    for (i = t->file_count; i-- > 0;)
        if (strcmp(t->text + t->files[i].name, t->text + name) == 0) {
            t->text_used = name; /* it is there already */
            return cdp__ck_torch_looks(t, t->file_count - i) ? (uint32_t)i : UINT32_MAX;
        }
    if (!cdp__ck_torch_looks(t, t->file_count)) return UINT32_MAX;
    f = cdp__ck_file_new(t);
    if (!f) {
        (void)cdp__ck_none(t);
        return UINT32_MAX;
    }
    f->name = name;
    return (uint32_t)t->file_count - 1;
}

/* The block of an entry that begins at these places; `hint`: probably this one. NULL: none, or it
   takes too long to find it. */
CDP__PRIVATE cdp__ck_block *cdp__ck_torch_find(
    cdp__ck_table *t, const cdp__ck_entry *e, const uint64_t *start, uint64_t hint) {
    cdp__ck_block *const all = t->blocks + e->first_block;
    uint64_t i;
    if (hint < e->blocks && memcmp(all[hint].box.start, start, e->ndim * sizeof *start) == 0
        && all[hint].file == UINT32_MAX)
        return &all[hint];
    if (!cdp__ck_torch_looks(t, e->blocks)) return NULL;
    for (i = 0; i < e->blocks; ++i)
        if (memcmp(all[i].box.start, start, e->ndim * sizeof *start) == 0
            && all[i].file == UINT32_MAX)
            return &all[i];
    return NULL;
}

/* Notes where something is: `key` says what, `value` where. */
CDP__PRIVATE bool cdp__ck_torch_place(
    cdp__ck_table *t, const cdp__tree *key, const cdp__tree *value) {
    const cdp__tree *const what = cdp__ck_torch_state(key, "MetadataIndex");
    const cdp__tree *const where = cdp__ck_torch_state(value, "_StorageInfo");
    const cdp__tree *const name = cdp__tree_get(what, "fqn"),
                           *const hint = cdp__tree_get(what, "index"),
                           *const changed = cdp__tree_get(where, "transform_descriptors");
    uint64_t start[CDP_TENSOR_DIMS] = {0}, at, bytes, text, likely;
    uint32_t dims = 0, file;
    cdp__ck_entry *e;
    cdp__ck_block *b;
    if (changed && changed->kind != CDP__TREE_NONE)
        return cdp__ck_unknown(t, "a tensor was transformed (transform_descriptors)");
    if (!cdp__ck_torch_number(t, cdp__tree_get(where, "offset"), &at)
        || !cdp__ck_torch_number(t, cdp__tree_get(where, "length"), &bytes))
        return false;
    if (bytes > INT64_MAX - at) return cdp__ck_bad(t, "a place in a file has more than 63 bits");
    text = cdp__ck_torch_text(t, name);
    e = text == UINT64_MAX ? NULL : cdp__ck_look(t, t->text + text);
    if (text != UINT64_MAX) t->text_used = text;
    if (!e) return cdp__ck_bad(t, "what is in a file has no entry");
    file = cdp__ck_torch_file(t, cdp__tree_get(where, "relative_path"));
    if (file == UINT32_MAX) return false;
    if (e->blob) {
        e->file = file;
        e->at = at;
        e->bytes = e->shape[0] = bytes;
        return true;
    }
    if (!cdp__ck_torch_numbers(t, cdp__tree_get(what, "offset"), start, &dims)) return false;
    likely = hint && hint->kind == CDP__TREE_INT ? (uint64_t)hint->as.whole : 0;
    b = dims == e->ndim ? cdp__ck_torch_find(t, e, start, likely) : NULL;
    if (!b) return cdp__ck_bad(t, "a block in a file is no block of its tensor");
    b->file = e->file = file;
    b->at = at;
    b->archive = bytes;
    return true;
}

CDP__PRIVATE bool cdp__ck_torch_places(cdp__ck_table *t, const cdp__tree *places) {
    uint64_t i, k;
    if (!places || places->kind != CDP__TREE_DICT)
        return cdp__ck_unknown(t, ".metadata has no dict storage_data");
    for (i = 0; i + 1 < places->as.box->count; i += 2)
        if (!cdp__ck_torch_place(t, &places->as.box->items[i], &places->as.box->items[i + 1]))
            return false;
    for (i = 0; i < t->count; ++i) {
        cdp__ck_entry *const e = &t->entries[i];
        for (k = 0; k < e->blocks; ++k)
            if (t->blocks[e->first_block + k].file == UINT32_MAX
                && t->blocks[e->first_block + k].bytes)
                return cdp__ck_bad(t, "a block of a tensor is in no file");
        if (e->file == UINT32_MAX && e->blob) return cdp__ck_bad(t, "bytes are in no file");
        if (e->file == UINT32_MAX) e->file = 0; /* it is empty */
    }
    return t->file_count || !t->count || cdp__ck_file_new(t) || cdp__ck_none(t);
}

/* Reads a whole `.metadata` into an empty table. */
CDP__PRIVATE bool cdp__ck_read_metadata(cdp__ck_table *t, const void *data, uint64_t bytes) {
    cdp__tree_reader r;
    cdp__tree v;
    const cdp__tree *state, *entries;
    uint64_t i, twice;
    bool ok;
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    r.memory.os = t->os;
    r.records = true;
    ok = cdp__unpickle(&r, &v);
    if (!ok) ok = r.no_memory ? cdp__ck_none(t) : cdp__ck_bad(t, r.why);
    state = ok ? cdp__ck_torch_state(&v, "Metadata") : NULL;
    entries = cdp__tree_get(state, "state_dict_metadata");
    if (ok && (!entries || entries->kind != CDP__TREE_DICT))
        ok = cdp__ck_unknown(t, "it is not the Metadata of torch.distributed.checkpoint");
    for (i = 0; ok && i + 1 < entries->as.box->count; i += 2) {
        ok = cdp__ck_torch_entry(t, &entries->as.box->items[i], &entries->as.box->items[i + 1]);
        /* one list of blocks in many tensors would need the square of the memory of the file */
        if (ok && t->block_count > bytes)
            ok = cdp__ck_bad(t, "a list of blocks is repeated too often");
    }
    ok = ok && cdp__ck_index(t, &twice)
        && cdp__ck_torch_places(t, cdp__tree_get(state, "storage_data"));
    cdp__tree_close(&r);
    return ok;
}

/* ---- a tensor in an archive */

/* Takes the record of a tensor: the name of the member that has its elements, and its place there
   in elements. False: it is not that of this block. */
CDP__PRIVATE bool cdp__ck_torch_elements(cdp__ck_table *t, const cdp__tree *v, cdp_dtype dtype,
    const cdp__ck_block *b, uint32_t ndim, const cdp__tree **member, uint64_t *first) {
    const cdp__tree_box *args, *outside;
    uint64_t sizes[CDP_TENSOR_DIMS] = {0}, strides[CDP_TENSOR_DIMS] = {0}, step = 1;
    uint32_t n, m, d;
    const bool third = cdp__ck_torch_is(v, "_rebuild_tensor_v3");
    if (!third && !cdp__ck_torch_is(v, "_rebuild_tensor_v2"))
        return cdp__ck_unknown(t, "an archive has something else than a tensor");
    args = v->as.box->items[1].as.box;
    if (args->count < (third ? 7 : 4) || args->items[0].kind != CDP__TREE_OUTSIDE)
        return cdp__ck_bad(t, "a tensor in an archive has too few arguments");
    outside = cdp__tree_list(&args->items[0].as.box->items[0]);
    if (!outside || outside->count < 5 || outside->items[2].kind != CDP__TREE_TEXT)
        return cdp__ck_bad(t, "a tensor in an archive has no storage");
    if (cdp__ck_torch_dtype(third ? &args->items[6] : &outside->items[1]) != dtype)
        return cdp__ck_bad(t, "a tensor in an archive has another dtype");
    if (!cdp__ck_torch_number(t, &args->items[1], first)
        || !cdp__ck_torch_numbers(t, &args->items[2], sizes, &n)
        || !cdp__ck_torch_numbers(t, &args->items[3], strides, &m))
        return false;
    if (n != ndim || m != n || memcmp(sizes, b->box.size, sizeof sizes) != 0)
        return cdp__ck_bad(t, "a tensor in an archive has another shape");
    for (d = n; d-- > 0; step *= sizes[d])
        if (sizes[d] > 1 && strides[d] != step)
            return cdp__ck_unknown(t, "a tensor in an archive is not contiguous");
    *member = &outside->items[2];
    return true;
}

/* The pickle of an archive says where the block is. */
CDP__PRIVATE int32_t cdp__ck_torch_look(
    cdp__ck_zip *z, cdp_dtype dtype, uint32_t ndim, cdp__ck_block *b) {
    const uint64_t elem = cdp__dtype_row_of(dtype)->bytes;
    cdp__tree_reader r;
    cdp__tree v;
    const cdp__tree *member = NULL;
    char name[CDP__CK_NAME + 8];
    uint8_t *data = NULL, order[3] = {'l', 'i', 't'};
    uint64_t at = 0, bytes = 0, first = 0;
    int32_t err = cdp__ck_zip_find(z, "byteorder", 9, &at, &bytes);
    if (!err && bytes > 2) err = cdp__ck_read(z->disk, z->fd, at, order, 3);
    if (err == ENOENT) err = 0; /* older ones have none */
    if (!err && memcmp(order, "lit", 3) != 0) err = cdp__ck_zip_bad(z, "it is big-endian");
    if (!err) err = cdp__ck_zip_find(z, "data.pkl", 8, &at, &bytes);
    if (!err && bytes > CDP__CK_PICKLE_MAX) err = EBADMSG;
    if (!err && !(data = (uint8_t *)cdp__alloc(z->t->os, bytes))) err = ENOMEM;
    if (!err) err = cdp__ck_read(z->disk, z->fd, at, data, bytes);
    memset(&r, 0, sizeof r);
    r.data = data;
    r.bytes = bytes;
    r.memory.os = z->t->os;
    r.records = true;
    if (!err && !cdp__unpickle(&r, &v)) err = r.no_memory ? ENOMEM : cdp__ck_zip_bad(z, r.why);
    if (!err && !cdp__ck_torch_elements(z->t, &v, dtype, b, ndim, &member, &first)) err = EBADMSG;
    if (!err && (!member->length || member->length > CDP__CK_NAME)) err = EBADMSG;
    if (!err) {
        memcpy(name, "data/", 5);
        memcpy(name + 5, member->as.text, member->length);
        err = cdp__ck_zip_find(z, name, 5 + member->length, &at, &bytes);
    }
    if (!err && (first > bytes / elem || b->bytes > bytes - first * elem))
        err = cdp__ck_zip_bad(z, "a tensor is not in its storage");
    if (!err) b->at = at + first * elem;
    cdp__tree_close(&r);
    cdp__free(z->t->os, data);
    return err == ENOENT ? cdp__ck_zip_bad(z, "an archive lacks a member") : err;
}

/* Finds out where the elements of a block are. */
CDP__PRIVATE int32_t cdp__ck_torch_open(
    cdp__ck_disk *disk, cdp__ck_table *t, const cdp__ck_entry *e, cdp__ck_block *b, int32_t fd) {
    cdp__ck_zip z;
    int32_t err;
    memset(&z, 0, sizeof z);
    z.disk = disk;
    z.t = t;
    z.at = b->at;
    z.bytes = b->archive;
    z.fd = fd;
    err = cdp__ck_zip_open(&z);
    if (!err) err = cdp__ck_torch_look(&z, e->dtype, e->ndim, b);
    cdp__ck_zip_close(&z);
    if (!err) b->archive = 0;
    return err;
}

/* ---- >>checkpoint/reader: a checkpoint as one process reads it ------------------------------- */

/* Knows: a folder and the table of what its files hold. Promises: reads nothing outside the files
   that the table names. */

#define CDP__CK_GAP 65536u      /* shorter gaps between runs are read, too */
#define CDP__CK_WINDOW 1048576u /* bytes that are read at once for short runs */

struct cdp_ckpt_reader {
    cdp__ck_disk disk;
    cdp__ck_table t;
    char folder[CDP__CK_PATH];
    bool step;                        /* it has a checkpoint.json */
    int32_t fd;                       /* of the file that was read last, or -1 */
    uint32_t file;                    /* which one that is */
    uint8_t *window;                  /* CDP__CK_WINDOW bytes, from the first short run on */
    uint64_t window_at, window_bytes; /* of file `window_file`, that the window has; or 0 */
    uint32_t window_file;
    cdp__ck_weights weights;
};

/* True if there is a reader, and it was not closed. */
CDP__PRIVATE bool cdp__ck_reader_lives(const cdp_ckpt_reader *r) {
    return r && !cdp__ended(r);
}

/* Refuses readers that were closed, and entries that are not there. */
CDP__PRIVATE cdp_status cdp__ck_reader_alive(
    const cdp_ckpt_reader *r, uint32_t index, const char *call) {
    if (cdp__ended(r)) return cdp__fail(CDP_ERR_STATE, "%s: this reader was closed", call);
    if (!r) return cdp__missing(call, "reader");
    if (index >= r->t.count)
        return cdp__fail(CDP_ERR_INVALID, "%s: there is no entry %u", call, index);
    return CDP_OK;
}

/* ---- opening ---- */

CDP__PRIVATE cdp_status cdp__ck_reader_bad(const cdp_ckpt_reader *r, const char *name) {
    const cdp_status st = r->t.status ? r->t.status : CDP_ERR_IO;
    return cdp_error_set(st, -1, st == CDP_ERR_IO ? EBADMSG : 0, "cdp_ckpt: %s/%s: %s", r->folder,
        name, r->t.why ? r->t.why : "it cannot be read");
}

/* Adds the tensors of one file of safetensors. */
CDP__PRIVATE cdp_status cdp__ck_reader_file(cdp_ckpt_reader *r, const char *name) {
    char path[CDP__CK_PATH], *json = NULL;
    uint8_t length[8];
    cdp_file_info info;
    cdp__ck_file *f;
    int32_t fd, err;
    uint64_t bytes = 0, i = r->t.count;
    bool ok = false;
    cdp__ck_path(path, r->folder, name);
    err = cdp__ck_open_file(&r->disk, path, 0, &fd);
    if (err) return cdp__ck_io(err, "cannot open", path);
    err = -r->disk.os->files.file_info(r->disk.os->user, fd, &info);
    if (!err) err = cdp__ck_read(&r->disk, fd, 0, length, 8);
    if (!err) bytes = cdp__get_u64(length);
    if (!err && (bytes > CDP__CK_HEADER_MAX || bytes > info.bytes - 8)) err = EBADMSG;
    if (!err && !(json = (char *)cdp__alloc(r->t.os, bytes))) err = ENOMEM;
    if (!err) err = cdp__ck_read(&r->disk, fd, 8, json, bytes);
    cdp__ck_close_file(&r->disk, fd, &err);
    if (err) {
        cdp__free(r->t.os, json);
        return cdp__ck_io(err, "cannot read the header of", path);
    }
    f = cdp__ck_file_new(&r->t);
    if (f) {
        f->name = cdp__ck_text(&r->t, name, strlen(name));
        f->data_at = bytes + 8;
        f->bytes = info.bytes;
        ok = f->name != UINT64_MAX
            && cdp__ck_read_header(&r->t, json, bytes, info.bytes - 8 - bytes);
    } else
        (void)cdp__ck_none(&r->t);
    cdp__free(r->t.os, json);
    for (; i < r->t.count; ++i)
        r->t.entries[i].blob = strcmp(name, CDP__CK_BLOBS) == 0;
    return ok ? CDP_OK : cdp__ck_reader_bad(r, name);
}

CDP__PRIVATE bool cdp__ck_ends(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* Looks for the next file of safetensors, in the order of names. */
typedef struct cdp__ck_next_file {
    char after[256], name[256];
    bool found;
} cdp__ck_next_file;

CDP__PRIVATE void cdp__ck_list_safetensors(void *user, const char *name) {
    cdp__ck_next_file *const n = (cdp__ck_next_file *)user;
    if (!cdp__ck_ends(name, ".safetensors") || strlen(name) >= sizeof n->name) return;
    if (strcmp(name, n->after) <= 0 || (n->found && strcmp(name, n->name) >= 0)) return;
    memcpy(n->name, name, strlen(name) + 1);
    n->found = true;
}

/* Adds all files of safetensors of the folder; *none: there is none. */
CDP__PRIVATE cdp_status cdp__ck_reader_files(cdp_ckpt_reader *r, bool *none) {
    cdp__ck_next_file n;
    cdp_status st = CDP_OK;
    memset(&n, 0, sizeof n);
    while (st == CDP_OK) {
        int32_t err;
        n.found = false;
        err = -r->disk.os->files.list_folder(
            r->disk.os->user, r->folder, cdp__ck_list_safetensors, &n);
        if (err && err != ENOENT) return cdp__ck_io(err, "cannot list", r->folder);
        if (!n.found) break;
        memcpy(n.after, n.name, sizeof n.after);
        st = cdp__ck_reader_file(r, n.name);
    }
    *none = !n.after[0];
    return st;
}

/* Reads what PyTorch has written into a folder; *none: nothing. */
CDP__PRIVATE cdp_status cdp__ck_reader_torch(cdp_ckpt_reader *r, bool *none) {
    char path[CDP__CK_PATH], *data;
    uint64_t bytes = 0;
    int32_t err;
    bool ok;
    cdp__ck_path(path, r->folder, CDP__CK_METADATA);
    err = cdp__ck_read_whole(&r->disk, path, CDP__CK_METADATA_MAX, &data, &bytes);
    *none = err == ENOENT || err == ENOTDIR;
    if (*none) return CDP_OK;
    if (err) return cdp__ck_io(err, "cannot read", path);
    ok = cdp__ck_read_metadata(&r->t, data, bytes);
    cdp__free(r->disk.os, data);
    return ok ? CDP_OK : cdp__ck_reader_bad(r, CDP__CK_METADATA);
}

/* Reads a folder that is one step. ENOENT in *err: it is none. */
CDP__PRIVATE cdp_status cdp__ck_reader_step(cdp_ckpt_reader *r, int32_t *err) {
    r->step = cdp__ck_describe(&r->disk, r->folder, &r->t, err);
    if (r->step || *err == ENOENT || *err == ENOTDIR) return CDP_OK;
    if (*err == EBADMSG) return cdp__ck_reader_bad(r, CDP__CK_DESCRIPTION);
    return cdp__ck_io(*err, "cannot read checkpoint.json in", r->folder);
}

CDP__PRIVATE cdp_status cdp__ck_reader_none(const char *path, uint64_t step) {
    if (step == CDP_CKPT_LATEST)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "cdp_ckpt: %s has neither a complete step nor files of safetensors or of "
            "torch.distributed.checkpoint",
            path);
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_ckpt: there is no step %llu in %s",
        (unsigned long long)step, path);
}

/* Fills the table from `path`; `step` counts if that is a folder of steps. */
CDP__PRIVATE cdp_status cdp__ck_reader_fill(cdp_ckpt_reader *r, const char *path, uint64_t step) {
    char name[64];
    bool none = false;
    int32_t err = 0;
    cdp_status st;
    if (cdp__ck_ends(path, ".safetensors")) {
        const char *const slash = strrchr(path, '/');
        (void)cdp__format(r->folder, sizeof r->folder, "%s", slash ? path : ".");
        if (slash) r->folder[slash - path] = 0;
        return cdp__ck_reader_file(r, slash ? slash + 1 : path);
    }
    (void)cdp__format(r->folder, sizeof r->folder, "%s", path);
    st = cdp__ck_reader_step(r, &err);
    if (st != CDP_OK || r->step) return st;
    if (step == CDP_CKPT_LATEST) {
        err = cdp__ck_newest(&r->disk, path, UINT64_MAX, &step);
        if (err && err != ENOENT) return cdp__ck_io(err, "cannot list", path);
        if (err) {
            st = cdp__ck_reader_torch(r, &none);
            if (st == CDP_OK && none) st = cdp__ck_reader_files(r, &none);
            return st == CDP_OK && none ? cdp__ck_reader_none(path, step) : st;
        }
    }
    cdp__ck_step_name(name, step);
    cdp__ck_path(r->folder, path, name);
    st = cdp__ck_reader_step(r, &err);
    if (st == CDP_OK && r->step && r->t.step != step) { /* ranks would look for other folders */
        (void)cdp__ck_bad(&r->t, "it is of another step than the name of its folder");
        return cdp__ck_reader_bad(r, CDP__CK_DESCRIPTION);
    }
    return st == CDP_OK && !r->step ? cdp__ck_reader_none(path, step) : st;
}

CDP__PRIVATE cdp_status cdp__ck_reader_open(const char *path, const cdp_os *os,
    const cdp_os *memory, uint64_t step, cdp_ckpt_reader **out) {
    cdp_ckpt_reader *r;
    uint64_t twice;
    cdp_status st;
    *out = NULL;
    if (strlen(path) > CDP__CK_PATH_MAX)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "cdp_ckpt: the path is longer than %u bytes", CDP__CK_PATH_MAX);
    if (!os->files.open_file || !os->files.list_folder || cdp__byte_order() != 1)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt: the os has no files, or this machine is not little-endian");
    r = (cdp_ckpt_reader *)cdp__alloc_zero(memory, sizeof *r);
    if (!r) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt: out of memory for a reader");
    cdp__ended_remove(r);
    r->disk.os = os;
    r->fd = -1;
    cdp__ck_table_open(&r->t, memory);
    cdp__ck_weights_fill(&r->weights);
    st = cdp__ck_reader_fill(r, path, step);
    if (st == CDP_OK && !cdp__ck_index(&r->t, &twice)) st = cdp__ck_reader_bad(r, "");
    if (st == CDP_OK)
        *out = r;
    else {
        const cdp_error why = *cdp_last_error();
        cdp_ckpt_close(r);
        *cdp__error_slot() = why;
    }
    return st;
}

CDP_API cdp_status cdp_ckpt_open(const char *path, const cdp_os *os, cdp_ckpt_reader **out) {
    if (!out) return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_open", "out");
    *out = NULL;
    if (!path) return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_open", "path");
    if (cdp__os_whole(os, "cdp_ckpt_open") != CDP_OK) return CDP_ERR_INVALID;
    if (!os) os = cdp_os_default();
    return cdp__ck_reader_open(path, os, os, CDP_CKPT_LATEST, out);
}

CDP_API void cdp_ckpt_close(cdp_ckpt_reader *r) {
    int32_t err = 0;
    const cdp_os *os;
    if (!cdp__ck_reader_lives(r)) return;
    cdp__ended_add(r);
    os = r->t.os;
    cdp__ck_close_file(&r->disk, r->fd, &err);
    cdp__free(os, r->window);
    cdp__ck_table_close(&r->t);
    cdp__free(os, r);
}

/* ---- reading ---- */

CDP__PRIVATE cdp_status cdp__ck_read_failed(
    const cdp_ckpt_reader *r, const cdp__ck_entry *e, int32_t err) {
    if (!r->t.why || err != EBADMSG)
        return cdp__ck_io(err, "cannot read", cdp__ck_file_name(&r->t, e));
    return cdp_error_set(r->t.status, -1, r->t.status == CDP_ERR_IO ? err : 0,
        "cdp_ckpt: cannot read '%s' from %s/%s: %s", cdp__ck_name(&r->t, e), r->folder,
        cdp__ck_file_name(&r->t, e), r->t.why);
}

CDP__PRIVATE int32_t cdp__ck_reader_fd(cdp_ckpt_reader *r, uint32_t file) {
    char path[CDP__CK_PATH];
    int32_t err = 0;
    if (r->fd >= 0 && r->file == file) return 0;
    cdp__ck_close_file(&r->disk, r->fd, &err);
    cdp__ck_path(path, r->folder, r->t.text + r->t.files[file].name);
    err = cdp__ck_open_file(&r->disk, path, 0, &r->fd);
    r->file = file;
    return err;
}

/* Reads runs from element `place` on, as many as fit into the window with the gaps between them.
   Returns 0 or an errno; *next: the element behind them. `to`: of element `place`. */
CDP__PRIVATE int32_t cdp__ck_read_window(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    const cdp__ck_piece *p, uint64_t place, uint64_t last, uint64_t *next, uint8_t *to) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes, begin = place;
    const cdp__ck_run first = cdp__ck_run_at(p, place, last);
    uint64_t end = (first.at + first.count) * elem, at;
    int32_t err;
    if (!r->window) r->window = (uint8_t *)cdp__alloc(r->t.os, CDP__CK_WINDOW);
    if (!r->window) return ENOMEM;
    r->window_bytes = 0;
    for (at = place + first.count; at < last;) {
        const cdp__ck_run run = cdp__ck_run_at(p, at, last);
        const uint64_t stop = (run.at + run.count) * elem;
        if (run.at * elem - end > CDP__CK_GAP || stop - first.at * elem > CDP__CK_WINDOW) break;
        end = stop;
        at += run.count;
    }
    *next = at;
    err = cdp__ck_read(&r->disk, r->fd, e->at + first.at * elem, r->window, end - first.at * elem);
    while (!err && place < *next) {
        const cdp__ck_run run = cdp__ck_run_at(p, place, *next);
        memcpy(to + (place - begin) * elem, r->window + (run.at - first.at) * elem,
            (size_t)(run.count * elem));
        place += run.count;
    }
    return err;
}

/* What is done with elements that were read. */
typedef void cdp__ck_got(
    void *user, const cdp__ck_entry *e, const cdp__ck_piece *p, uint64_t place, uint64_t last);

/* A box of an entry, as a piece. */
CDP__PRIVATE cdp__ck_piece cdp__ck_piece_in(const cdp__ck_entry *e, const cdp_box *box) {
    cdp__ck_piece p;
    memset(&p, 0, sizeof p);
    memcpy(p.shape, e->shape, e->ndim * sizeof *p.shape);
    if (box) memcpy(p.box.start, box->start, e->ndim * sizeof *p.box.start);
    memcpy(p.box.size, box ? box->size : e->shape, e->ndim * sizeof *p.box.size);
    cdp__ck_piece_runs(&p, e->ndim);
    return p;
}

/* Copies bytes of a file, short ones by way of the window; none are read behind `end`. */
CDP__PRIVATE int32_t cdp__ck_read_bytes(
    cdp_ckpt_reader *r, uint32_t file, uint64_t at, uint64_t bytes, uint64_t end, void *to) {
    int32_t err = cdp__ck_reader_fd(r, file);
    if (err || bytes >= CDP__CK_GAP)
        return err ? err : cdp__ck_read(&r->disk, r->fd, at, to, bytes);
    if (!r->window) r->window = (uint8_t *)cdp__alloc(r->t.os, CDP__CK_WINDOW);
    if (!r->window) return ENOMEM;
    if (r->window_file != file || at < r->window_at
        || at + bytes > r->window_at + r->window_bytes) {
        const uint64_t n = cdp__min(end - at, CDP__CK_WINDOW);
        r->window_bytes = 0;
        err = cdp__ck_read(&r->disk, r->fd, at, r->window, n);
        if (err) return err;
        r->window_file = file;
        r->window_at = at;
        r->window_bytes = n;
    }
    memcpy(to, r->window + (at - r->window_at), (size_t)bytes);
    return 0;
}

/* Where elements `first` to `last` of a piece begin and end in the tensor. */
CDP__PRIVATE void cdp__ck_span(
    const cdp__ck_piece *p, uint64_t first, uint64_t last, uint64_t *begin, uint64_t *end) {
    const cdp__ck_run r = cdp__ck_run_at(p, last - 1, last);
    *begin = cdp__ck_run_at(p, first, last).at;
    *end = r.at + r.count;
}

/* The first place of a piece whose run ends behind element `at` of the tensor. */
CDP__PRIVATE uint64_t cdp__ck_place_behind(const cdp__ck_piece *p, uint64_t at) {
    uint64_t from = 0, to = p->count;
    while (from < to) {
        const uint64_t half = from + (to - from) / 2;
        const cdp__ck_run r = cdp__ck_run_at(p, half, p->count);
        if (r.at + r.count > at)
            to = half;
        else
            from = half + 1;
    }
    return from;
}

/* Reads what a block has of elements `first` to `last` of a piece: both have runs in the order of
   the tensor. Adds to *have how many these were. */
CDP__PRIVATE int32_t cdp__ck_read_block(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    cdp__ck_block *b, const cdp__ck_piece *p, uint64_t first, uint64_t last, uint8_t *to,
    cdp__ck_got *got, void *user, uint64_t *have) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes, most = CDP__CK_AT_ONCE / elem;
    const cdp__ck_piece q = cdp__ck_piece_in(e, &b->box);
    uint64_t mine = first, theirs, span[4];
    int32_t err = 0;
    if (!q.count) return 0;
    cdp__ck_span(p, first, last, &span[0], &span[1]);
    cdp__ck_span(&q, 0, q.count, &span[2], &span[3]);
    if (span[0] >= span[3] || span[2] >= span[1]) return 0;
    theirs = cdp__ck_place_behind(&q, span[0]);
    if (b->archive) err = cdp__ck_reader_fd(r, b->file);
    if (!err && b->archive) err = cdp__ck_torch_open(&r->disk, &r->t, e, b, r->fd);
    while (!err && mine < last && theirs < q.count) {
        const cdp__ck_run x = cdp__ck_run_at(p, mine, last);
        const cdp__ck_run y = cdp__ck_run_at(&q, theirs, q.count);
        const uint64_t at = cdp__max(x.at, y.at);
        uint64_t stop = cdp__min(x.at + x.count, y.at + y.count);
        if (at < stop) {
            const uint64_t place = x.place + (at - x.at), n = cdp__min(stop - at, most);
            stop = at + n;
            err = cdp__ck_read_bytes(r, b->file, b->at + (y.place + (at - y.at)) * elem, n * elem,
                b->at + b->bytes, to + (place - first) * elem);
            if (!err && got) got(user, e, p, place, place + n);
            *have += n;
        }
        if (stop > x.at) mine += stop - x.at;
        if (stop > y.at) theirs += stop - y.at;
    }
    return err;
}

/* The same of all blocks of an entry. */
CDP__PRIVATE int32_t cdp__ck_read_blocks(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    const cdp__ck_piece *p, uint64_t first, uint64_t last, uint8_t *to, cdp__ck_got *got,
    void *user) {
    uint64_t have = 0, i;
    int32_t err = 0;
    for (i = 0; !err && i < e->blocks; ++i) {
        cdp__ck_block *const b = &r->t.blocks[e->first_block + i];
        if (b->bytes) err = cdp__ck_read_block(r, e, b, p, first, last, to, got, user, &have);
    }
    return err || have == last - first ? err : EBADMSG;
}

/* Reads elements `first` to `last` of a piece to `to`, and calls got() for each stretch. */
CDP__PRIVATE int32_t cdp__ck_read_piece(cdp_ckpt_reader *r, const cdp__ck_entry *e,
    const cdp__ck_piece *p, uint64_t first, uint64_t last, void *to, cdp__ck_got *got, void *user) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes, most = CDP__CK_CALL / elem;
    uint8_t *const data = (uint8_t *)to;
    uint64_t place = first, next = 0;
    int32_t err;
    r->t.why = NULL; /* of an earlier error */
    if (first >= last) return 0;
    if (e->blocks) return cdp__ck_read_blocks(r, e, p, first, last, data, got, user);
    err = cdp__ck_reader_fd(r, e->file);
    while (!err && place < last) {
        const cdp__ck_run run = cdp__ck_run_at(p, place, cdp__min(last, place + most));
        if (p->run * elem >= CDP__CK_GAP || run.count == p->count) {
            next = place + run.count;
            err = cdp__ck_read(&r->disk, r->fd, e->at + run.at * elem,
                data + (place - first) * elem, run.count * elem);
        } else
            err = cdp__ck_read_window(r, e, p, place, last, &next, data + (place - first) * elem);
        if (!err && got) got(user, e, p, place, next);
        place = next;
    }
    return err;
}

CDP_API uint64_t cdp_ckpt_step_of(const cdp_ckpt_reader *r) {
    return cdp__ck_reader_lives(r) ? r->t.step : 0;
}

CDP_API uint32_t cdp_ckpt_count(const cdp_ckpt_reader *r) {
    return cdp__ck_reader_lives(r) ? (uint32_t)r->t.count : 0;
}

CDP_API uint32_t cdp_ckpt_find(const cdp_ckpt_reader *r, const char *name) {
    const bool asks = cdp__ck_reader_lives(r) && name;
    const cdp__ck_entry *const e = asks ? cdp__ck_look(&r->t, name) : NULL;
    return e ? (uint32_t)(e - r->t.entries) : UINT32_MAX;
}

CDP_API cdp_ckpt_entry cdp_ckpt_entry_at(const cdp_ckpt_reader *r, uint32_t index) {
    cdp_ckpt_entry out;
    memset(&out, 0, sizeof out);
    if (!cdp__ck_reader_lives(r) || index >= r->t.count) return out;
    out.name = cdp__ck_name(&r->t, &r->t.entries[index]);
    out.file = cdp__ck_file_name(&r->t, &r->t.entries[index]);
    out.dtype = r->t.entries[index].dtype;
    out.ndim = r->t.entries[index].ndim;
    memcpy(out.shape, r->t.entries[index].shape, sizeof out.shape);
    out.bytes = r->t.entries[index].bytes;
    out.blob = r->t.entries[index].blob;
    if (r->t.entries[index].layout) out.layout = r->t.text + r->t.entries[index].layout;
    return out;
}

CDP_API cdp_status cdp_ckpt_read(
    cdp_ckpt_reader *r, uint32_t index, const cdp_box *box, void *out) {
    const cdp__ck_entry *e;
    cdp__ck_piece p;
    const cdp_status st = cdp__ck_reader_alive(r, index, "cdp_ckpt_read");
    int32_t err;
    uint32_t d;
    if (st != CDP_OK) return st;
    e = &r->t.entries[index];
    for (d = 0; box && d < e->ndim; ++d)
        if (box->start[d] > e->shape[d] || box->size[d] > e->shape[d] - box->start[d])
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt_read: the box leaves '%s' in dimension %u", cdp__ck_name(&r->t, e),
                (unsigned)d);
    p = cdp__ck_piece_in(e, box);
    if (p.count && !out)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, "cdp_ckpt_read", "out");
    err = cdp__ck_read_piece(r, e, &p, 0, p.count, out, NULL, NULL);
    return err ? cdp__ck_read_failed(r, e, err) : CDP_OK;
}

/* The error of a slab whose sum is wrong. */
CDP__PRIVATE cdp_status cdp__ck_damaged(
    const cdp_ckpt_reader *r, const cdp__ck_entry *e, uint64_t slab) {
    const uint64_t each = cdp__ck_slab_elements(&r->t, e);
    const uint64_t all = e->bytes / cdp__dtype_row_of(e->dtype)->bytes;
    return cdp_error_set(CDP_ERR_IO, -1, EBADMSG,
        "cdp_ckpt: '%s' in %s/%s is damaged: the sum of elements %llu to %llu (slab %llu) is not "
        "the one that was saved",
        cdp__ck_name(&r->t, e), r->folder, cdp__ck_file_name(&r->t, e),
        (unsigned long long)(slab * each),
        (unsigned long long)(cdp__min(slab * each + each, all) - 1), (unsigned long long)slab);
}

CDP__PRIVATE cdp_status cdp__ck_verify_run(cdp_ckpt_reader *r, const cdp__ck_entry *e) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t each = cdp__ck_slab_elements(&r->t, e), all = e->bytes / elem;
    uint8_t *const data = (uint8_t *)cdp__alloc(r->t.os, cdp__min(r->t.slab, e->bytes));
    cdp_status st = CDP_OK;
    int32_t err = 0;
    uint64_t i;
    if (!data) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_verify: out of memory");
    if (e->sums) err = cdp__ck_reader_fd(r, e->file);
    for (i = 0; st == CDP_OK && !err && i < e->sums; ++i) {
        const uint64_t n = cdp__min(each, all - i * each);
        err = cdp__ck_read(&r->disk, r->fd, e->at + i * each * elem, data, n * elem);
        if (!err
            && cdp__ck_sum(&r->weights, data, elem, i * each, n) != r->t.sums[e->first_sum + i])
            st = cdp__ck_damaged(r, e, i);
    }
    cdp__free(r->t.os, data);
    return err ? cdp__ck_io(err, "cannot read", cdp__ck_file_name(&r->t, e)) : st;
}

CDP_API cdp_status cdp_ckpt_verify(cdp_ckpt_reader *r, uint32_t index) {
    const cdp_status st = cdp__ck_reader_alive(r, index, "cdp_ckpt_verify");
    if (st != CDP_OK) return st;
    if (!r->step)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "cdp_ckpt_verify: %s has no checkpoint.json, and so no sums", r->folder);
    return cdp__ck_verify_run(r, &r->t.entries[index]);
}

/* ---- >>checkpoint/load: a checkpoint into tensors of any layout ------------------------------ */

/* Knows: a reader on each rank. Promises: nothing is changed before all items fit; each byte that
   was loaded is compared with its sum; an error is the same on all ranks. */

typedef struct cdp__ck_load {
    cdp_ckpt *c;
    cdp_ckpt_reader *r;
    uint64_t *shares,
        *held;             /* for each slab of the table: sums of the share, of all that is held */
    uint64_t *counts;      /* elements of that */
    const uint8_t *memory; /* of element `first` of the item that is read now, as in the files */
    uint64_t first;
    uint8_t *window; /* CDP__CK_CALL bytes, from the first item on that is converted */
} cdp__ck_load;

/* ---- before reading ---- */

#define CDP__CK_SHOWN 100u /* bytes of a name in a list of mistakes */

/* Adds a line to a list of mistakes, as long as there is room; the first one in any case. */
CDP__PRIVATE void cdp__ck_mistake(
    cdp__text *t, uint32_t *count, const char *name, const char *what) {
    const uint64_t length = strlen(name), shown = cdp__min(length, CDP__CK_SHOWN);
    if (!*count || t->used + shown + strlen(what) + 40 < t->room) {
        cdp__text_add(t, *count ? "; '" : "'");
        cdp__text_bytes(t, name, shown);
        cdp__text_add(t, "%s' %s", shown < length ? "..." : "", what);
    } else if (t->used + 12 < t->room && t->at[t->used - 1] != '.')
        cdp__text_add(t, "; and more...");
    ++*count;
}

CDP__PRIVATE void cdp__ck_shape_text(cdp__text *t, uint32_t ndim, const uint64_t *shape) {
    uint32_t d;
    cdp__text_char(t, '[');
    for (d = 0; d < ndim; ++d)
        cdp__text_add(t, d ? ",%llu" : "%llu", (unsigned long long)shape[d]);
    cdp__text_char(t, ']');
}

/* Whether elements of one dtype can become those of another. */
CDP__PRIVATE bool cdp__ck_converts(cdp_dtype from, cdp_dtype to) {
    return cdp__dtype_row_of(from)->kind != CDP__COMPLEX && !cdp__dtype_left_out(from)
        && !cdp__dtype_left_out(to);
}

/* Compares an item with what the files have of it. `cast`: another dtype will be converted. */
CDP__PRIVATE void cdp__ck_item_fits(
    const cdp_item *i, const cdp__ck_entry *e, bool cast, cdp__text *list, uint32_t *count) {
    const uint64_t *shape;
    const uint32_t ndim = cdp__ck_item_shape(i, &shape);
    const cdp_dtype dtype = cdp__ck_item_dtype(i);
    char what[400];
    cdp__text t = cdp__text_of(what, sizeof what);
    const bool same =
        ndim == e->ndim && memcmp(shape, e->shape, ndim * sizeof *shape) == 0 && !e->blob;
    if (same && (dtype == e->dtype || (cast && cdp__ck_converts(e->dtype, dtype)))) return;
    cdp__text_add(&t, "is %s", e->blob ? "a blob, not " : "");
    cdp__text_add(&t, "%s", cdp__dtype_row_of(e->dtype)->name);
    cdp__ck_shape_text(&t, e->ndim, e->shape);
    cdp__text_add(&t, " in the files and %s", cdp__dtype_row_of(dtype)->name);
    cdp__ck_shape_text(&t, ndim, shape);
    cdp__text_add(&t, " here");
    (void)cdp__text_end(&t);
    cdp__ck_mistake(list, count, i->name, what);
}

/* Compares all items with the files; notes in the table which entry is whose. */
CDP__PRIVATE cdp_status cdp__ck_fits(cdp__ck_load *l) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    char text[CDP_ERROR_TEXT - 80];
    cdp__text t = cdp__text_of(text, sizeof text);
    uint32_t mistakes = 0, i;
    uint64_t k;
    for (k = 0; k < l->r->t.count; ++k)
        l->r->t.entries[k].item = UINT32_MAX;
    for (i = 0; i < d->item_count; ++i) {
        cdp__ck_entry *const e = cdp__ck_look(&l->r->t, d->items[i].name);
        if (!e) {
            ++l->c->info.missing;
            if (!d->partial)
                cdp__ck_mistake(&t, &mistakes, d->items[i].name, "is not in the files");
            continue;
        }
        cdp__ck_item_fits(&d->items[i], e, d->cast, &t, &mistakes);
        e->item = i;
        l->c->info.cast += cdp__ck_item_dtype(&d->items[i]) != e->dtype;
    }
    for (k = 0; k < l->r->t.count; ++k)
        l->c->info.surplus += l->r->t.entries[k].item == UINT32_MAX && !l->r->t.entries[k].blob;
    if (!mistakes) return CDP_OK;
    (void)cdp__text_end(&t);
    return cdp_error_set(CDP_ERR_MISMATCH, -1, 0,
        "cdp_ckpt_load: %u of %u items do not fit (%u surplus in %s): %s", (unsigned)mistakes,
        (unsigned)d->item_count, (unsigned)l->c->info.surplus,
        strrchr(l->r->folder, '/') ? strrchr(l->r->folder, '/') + 1 : l->r->folder, text);
}

/* The entry of a blob for this rank; NULL: there is none. */
CDP__PRIVATE const cdp__ck_entry *cdp__ck_blob_find(
    const cdp_ckpt_reader *r, const cdp_ckpt_blob *b, uint32_t rank) {
    char name[CDP__CK_NAME + 1];
    cdp__text t = cdp__text_of(name, sizeof name);
    const cdp__ck_entry *e;
    cdp__text_add(&t, "%s", b->name);
    if (b->per_rank) {
        cdp__text_add(&t, ".rank");
        cdp__ck_digits(&t, rank, 5);
    }
    (void)cdp__text_end(&t);
    e = cdp__ck_look(&r->t, name);
    return e && e->blob ? e : NULL;
}

CDP__PRIVATE cdp_status cdp__ck_blobs_fit(const cdp__ck_load *l) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    uint32_t i;
    for (i = 0; i < d->blob_count; ++i) {
        const cdp_ckpt_blob *const b = &d->blobs[i];
        const cdp__ck_entry *const e = cdp__ck_blob_find(l->r, b, cdp_rank(d->group));
        if (e && e->bytes > b->room)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ckpt_load: blob '%s' has %llu bytes, its room is %llu", b->name,
                (unsigned long long)e->bytes, (unsigned long long)b->room);
        if (!e && !d->partial && !(b->per_rank && cdp__ck_blob_find(l->r, b, 0)))
            return cdp_error_set(
                CDP_ERR_MISMATCH, -1, 0, "cdp_ckpt_load: blob '%s' is not in the files", b->name);
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__ck_load_room(cdp__ck_load *l) {
    const uint64_t n = l->r->t.sum_count;
    l->shares = (uint64_t *)cdp__alloc_zero(l->r->t.os, 3 * n * sizeof *l->shares);
    if (!l->shares) return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "cdp_ckpt_load: out of memory");
    l->held = l->shares + n;
    l->counts = l->held + n;
    return CDP_OK;
}

/* ---- reading ---- */

/* Sums what was read: its part in the share of this rank, and the rest. */
CDP__PRIVATE void cdp__ck_load_got(
    void *user, const cdp__ck_entry *e, const cdp__ck_piece *p, uint64_t place, uint64_t last) {
    cdp__ck_load *const l = (cdp__ck_load *)user;
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t slab = cdp__ck_slab_elements(&l->r->t, e);
    cdp__ck_progressed(&l->c->desc, &l->c->progress, (last - place) * elem);
    if (!e->sums || l->c->desc.no_verify) return;
    while (place < last) {
        const uint64_t behind = place < p->last ? p->last : last;
        const uint64_t edge = place < p->first ? p->first : behind;
        cdp__ck_run r = cdp__ck_run_at(p, place, cdp__min(edge, last));
        const uint64_t within = r.at % slab;
        uint64_t sum;
        r.count = cdp__min(r.count, slab - within);
        sum =
            cdp__ck_sum(&l->c->weights, l->memory + (place - l->first) * elem, elem, r.at, r.count);
        l->held[e->first_sum + r.at / slab] += sum;
        l->counts[e->first_sum + r.at / slab] += r.count;
        if (place >= p->first && place < p->last) l->shares[e->first_sum + r.at / slab] += sum;
        place += r.count;
    }
}

/* Reads a piece whose elements become those of another dtype, a window at a time. */
CDP__PRIVATE int32_t cdp__ck_load_cast(
    cdp__ck_load *l, const cdp__ck_entry *e, const cdp__ck_piece *p, cdp_dtype to, uint8_t *data) {
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    const uint64_t size = cdp__dtype_row_of(to)->bytes, most = CDP__CK_CALL / elem;
    int32_t err = 0;
    if (!l->window) l->window = (uint8_t *)cdp__alloc(l->r->t.os, CDP__CK_CALL);
    if (!l->window) return ENOMEM;
    l->memory = l->window;
    for (l->first = 0; !err && l->first < p->count; l->first += most) {
        const uint64_t n = cdp__min(p->count - l->first, most);
        err =
            cdp__ck_read_piece(l->r, e, p, l->first, l->first + n, l->window, cdp__ck_load_got, l);
        if (!err) cdp__convert(e->dtype, l->window, to, data + l->first * size, n);
    }
    return err;
}

CDP__PRIVATE cdp_status cdp__ck_load_item(cdp__ck_load *l, const cdp__ck_entry *e) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    const cdp_item *const item = &d->items[e->item];
    const cdp__ck_piece p = cdp__ck_item_piece(item, cdp_rank(d->group), cdp_size(d->group));
    uint8_t *const data = (uint8_t *)item->tensor.data;
    int32_t err;
    l->memory = data;
    l->first = 0;
    if (e->dtype != cdp__ck_item_dtype(item))
        err = cdp__ck_load_cast(l, e, &p, cdp__ck_item_dtype(item), data);
    else
        err = cdp__ck_read_piece(l->r, e, &p, 0, p.count, data, cdp__ck_load_got, l);
    return err ? cdp__ck_read_failed(l->r, e, err) : CDP_OK;
}

/* Every rank reads blobs, and compares their sums, alone. */
CDP__PRIVATE cdp_status cdp__ck_load_blob(cdp__ck_load *l, cdp_ckpt_blob *b) {
    const cdp__ck_entry *const e = cdp__ck_blob_find(l->r, b, cdp_rank(l->c->desc.group));
    uint64_t i;
    cdp_status st;
    if (!e) {
        if (b->per_rank) b->bytes = 0;
        return CDP_OK;
    }
    b->bytes = e->bytes;
    st = cdp_ckpt_read(l->r, (uint32_t)(e - l->r->t.entries), NULL, b->data);
    for (i = 0; st == CDP_OK && i < e->sums && !l->c->desc.no_verify; ++i) {
        const uint64_t slab = l->r->t.slab, n = cdp__min(slab, e->bytes - i * slab);
        if (cdp__ck_sum(&l->c->weights, (uint8_t *)b->data + i * slab, 1, i * slab, n)
            != l->r->t.sums[e->first_sum + i])
            st = cdp__ck_damaged(l->r, e, i);
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__ck_load_all(cdp__ck_load *l) {
    const cdp_ckpt_desc *const d = &l->c->desc;
    cdp_status st = CDP_OK;
    uint64_t k;
    uint32_t i;
    for (k = 0; st == CDP_OK && k < l->r->t.count; ++k)
        if (l->r->t.entries[k].item != UINT32_MAX) st = cdp__ck_load_item(l, &l->r->t.entries[k]);
    for (i = 0; st == CDP_OK && i < d->blob_count; ++i)
        st = cdp__ck_load_blob(l, &d->blobs[i]);
    return st;
}

/* ---- sums ---- */

/* Slabs that this rank holds whole: also of copies that are in the share of another rank. */
CDP__PRIVATE cdp_status cdp__ck_check_held(const cdp__ck_load *l) {
    const cdp__ck_table *const t = &l->r->t;
    uint64_t k, i;
    for (k = 0; k < t->count; ++k) {
        const cdp__ck_entry *const e = &t->entries[k];
        const uint64_t each = cdp__ck_slab_elements(t, e);
        const uint64_t all = e->bytes / cdp__dtype_row_of(e->dtype)->bytes;
        for (i = 0; e->item != UINT32_MAX && i < e->sums; ++i)
            if (l->counts[e->first_sum + i] == cdp__min(each, all - i * each)
                && l->held[e->first_sum + i] != t->sums[e->first_sum + i])
                return cdp__ck_damaged(l->r, e, i);
    }
    return CDP_OK;
}

/* Shares of all ranks: each element once. */
CDP__PRIVATE cdp_status cdp__ck_check_shares(cdp__ck_load *l) {
    const cdp__ck_table *const t = &l->r->t;
    cdp_group *const g = l->c->desc.group;
    cdp_status st = cdp_allreduce(g, NULL, l->shares, t->sum_count, CDP_DTYPE_U64, CDP_REDUCE_SUM);
    uint64_t k, i;
    if (st != CDP_OK) return st;
    for (k = 0; st == CDP_OK && k < t->count; ++k) {
        const cdp__ck_entry *const e = &t->entries[k];
        for (i = 0; st == CDP_OK && e->item != UINT32_MAX && i < e->sums; ++i)
            if (l->shares[e->first_sum + i] != t->sums[e->first_sum + i])
                st = cdp__ck_damaged(l->r, e, i);
    }
    return cdp__ck_verdict(g, st);
}

/* Whether sums are compared; the same on all ranks. */
CDP__PRIVATE bool cdp__ck_compares(const cdp__ck_load *l) {
    return l->r->step && !l->c->desc.no_verify;
}

CDP__PRIVATE cdp_status cdp__ck_check(cdp__ck_load *l) {
    cdp_status st;
    if (!cdp__ck_compares(l)) return CDP_OK;
    st = cdp__ck_verdict(l->c->desc.group, cdp__ck_check_held(l));
    return st == CDP_OK && l->r->t.sum_count ? cdp__ck_check_shares(l) : st;
}

/* ---- the call ---- */

/* Rank 0 chooses the step, so that all ranks load the same one; and all check their items. */
CDP__PRIVATE cdp_status cdp__ck_choose(cdp__ck_load *l, const char *path, uint64_t *step) {
    cdp_ckpt *const c = l->c;
    cdp_group *const g = c->desc.group;
    const bool root = cdp_rank(g) == 0;
    const cdp_os *const os = cdp_group_desc_of(g)->os;
    cdp__ck_table t;
    cdp_status st;
    cdp__ck_table_open(&t, os);
    st = cdp__ck_plan(&t, &c->desc);
    cdp__ck_table_close(&t);
    if (st == CDP_OK) st = cdp__ck_memory_check(c);
    st = cdp__ck_verdict(g, st);
    if (st == CDP_OK) st = cdp__ck_agree(c, *step, path);
    if (st != CDP_OK) return st;
    if (root) st = cdp__ck_reader_open(path, c->disk.os, os, *step, &l->r);
    st = cdp__ck_verdict(g, st);
    if (st == CDP_OK && root && l->r->step) *step = l->r->t.step;
    if (st == CDP_OK) st = cdp_broadcast(g, step, 1, CDP_DTYPE_U64, 0);
    if (st != CDP_OK) return st;
    if (!root) st = cdp__ck_reader_open(path, c->disk.os, os, *step, &l->r);
    return cdp__ck_verdict(g, st);
}

CDP__PRIVATE cdp_status cdp__ck_load_run(
    cdp__ck_load *l, const char *path, uint64_t step, uint64_t *found) {
    cdp_ckpt *const c = l->c;
    cdp_group *const g = c->desc.group;
    cdp_status st = cdp__ck_choose(l, path, &step);
    uint64_t began, k;
    if (st == CDP_OK) {
        st = cdp__ck_fits(l);
        if (st == CDP_OK) st = cdp__ck_blobs_fit(l);
        if (st == CDP_OK) st = cdp__ck_load_room(l);
        st = cdp__ck_verdict(g, st);
    }
    if (st == CDP_OK && cdp__ck_compares(l)) st = cdp__ck_covered(c, &l->r->t);
    if (st != CDP_OK) return st;
    c->info.step = l->r->t.step;
    c->info.files = l->r->t.file_count;
    for (k = 0; k < l->r->t.count; ++k) {
        const cdp__ck_entry *const e = &l->r->t.entries[k];
        if (e->item == UINT32_MAX) continue;
        c->info.total_bytes += e->bytes;
        c->progress.total +=
            cdp__ck_item_piece(&c->desc.items[e->item], cdp_rank(g), cdp_size(g)).count
            * cdp__dtype_row_of(e->dtype)->bytes;
    }
    began = c->disk.os->now_ns(c->disk.os->user);
    st = cdp__ck_verdict(g, cdp__ck_load_all(l));
    if (st == CDP_OK) st = cdp__ck_check(l);
    c->info.read_ns = c->disk.os->now_ns(c->disk.os->user) - began;
    c->info.bytes_read = l->r->disk.read_bytes;
    c->info.reads = l->r->disk.reads;
    if (st == CDP_OK && found) *found = l->r->t.step;
    return st;
}

CDP_API cdp_status cdp_ckpt_load(cdp_ckpt *c, const char *path, uint64_t step, uint64_t *found) {
    cdp__ck_load l;
    cdp_status st = cdp__ck_alive(c, "cdp_ckpt_load");
    cdp_error why;
    if (found) *found = 0;
    if (st != CDP_OK) return st;
    memset(&l, 0, sizeof l);
    l.c = c;
    st = cdp__ck_enter(c, "cdp_ckpt_load"); /* leaves the info of a save that has ended */
    memset(&c->info, 0, sizeof c->info);
    c->progress.done = c->progress.total = 0;
    if (st == CDP_OK) st = cdp__ck_load_run(&l, path ? path : c->path, step, found);
    why = *cdp_last_error();
    cdp__free(cdp_group_desc_of(c->desc.group)->os, l.shares);
    cdp__free(cdp_group_desc_of(c->desc.group)->os, l.window);
    cdp_ckpt_close(l.r);
    if (st != CDP_OK) *cdp__error_slot() = why;
    return st;
}

#endif /* CDP_CHECKPOINT_IMPL_INCLUDED */
