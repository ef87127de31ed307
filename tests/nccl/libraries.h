/* libraries.h - starts a test program again with the stand-in's libraries in its library path:
   the folder `nccl` beside the program, or a folder in that */
#ifndef LIBRARIES_INCLUDED
#define LIBRARIES_INCLUDED

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder that holds version `which` ("": the newest). */
TEST_API const char *libraries_folder(const char *program, const char *which) {
    static __thread char folder[PATH_MAX];
    const char *const slash = strrchr(program, '/');
    snprintf(folder, sizeof folder, "%.*s/nccl/%s", slash ? (int)(slash - program) : 1,
        slash ? program : ".", which);
    return folder;
}

TEST_API void libraries_at_hand(char **argv, const char *which) {
    const char *const folder = libraries_folder(argv[0], which),
                      *const now = getenv("STANDIN_FOLDER");
    if (now) return;
    setenv("STANDIN_FOLDER", folder, 1);
    setenv("LD_LIBRARY_PATH", folder, 1);
    execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    exit(2);
}

#endif
