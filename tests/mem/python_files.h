/* python_files.h - one snapshot as Python's json and pickle write it

   Non-ASCII names, characters that need escapes, numbers of every kind, and keys that cdp_mem.h
   does not know at every level. */
#ifndef TESTS_PYTHON_FILES_H
#define TESTS_PYTHON_FILES_H

/* clang-format off */
static const char as_json[] =
    "{\"segments\": [{\"device\": 0, \"address\": 70368744177664, \"total_size\": 4096, \""
    "stream\": 0, \"segment_type\": \"small\", \"frames\": [{\"filename\": \"gr\\u00f6\\u0"
    "0dfe \\u20ac \\ud83d\\ude00.py\", \"line\": 7, \"name\": \"f\\\"'\\\\\", \"fx_node_op"
    "\": \"call\"}], \"blocks\": [{\"size\": 4096, \"requested_size\": 4000, \"state\": \""
    "active_allocated\", \"frames\": [{\"filename\": \"gr\\u00f6\\u00dfe \\u20ac \\ud83d\\"
    "ude00.py\", \"line\": 7, \"name\": \"f\\\"'\\\\\", \"fx_node_op\": \"call\"}], \"hist"
    "ory\": [{\"real_size\": 4000, \"ok\": true, \"none\": null}]}], \"registered\": [true"
    ", false, -1, 1.5, 1e+300]}], \"device_traces\": [[{\"action\": \"alloc\", \"addr\": 7"
    "0368744177664, \"size\": 4096, \"stream\": 0, \"time_us\": 1700000000000000, \"frames"
    "\": [{\"filename\": \"gr\\u00f6\\u00dfe \\u20ac \\ud83d\\ude00.py\", \"line\": 7, \"n"
    "ame\": \"f\\\"'\\\\\", \"fx_node_op\": \"call\"}], \"compile_context\": \"0/1\", \"bi"
    "g\": 4611686018427387904, \"little\": -4611686018427387904}]], \"allocator_settings\""
    ": {\"expandable_segments\": true, \"max_split_size\": -1, \"roundup\": {\"a\": 0.1}},"
    " \"external_annotations\": [{\"stage\": \"START\", \"name\": \"optimizer\\n\", \"devi"
    "ce\": 0}], \"later\": {\"k\": [[], {}, [1, 2]]}}";
/* pickle.dumps(snapshot, protocol=0) of Python 3 */
static const char protocol_0[] =
    "(dp0\nVsegments\np1\n(lp2\n(dp3\nVdevice\np4\nI0\nsVaddress\np5\nL70368744177664L\nsV"
    "total_size\np6\nI4096\nsVstream\np7\nI0\nsVsegment_type\np8\nVsmall\np9\nsVframes\np1"
    "0\n(lp11\n(dp12\nVfilename\np13\nVgr\366\337e \\u20ac \\U0001f600.py\np14\nsVline\np1"
    "5\nI7\nsVname\np16\nVf\"'\\u005c\np17\nsVfx_node_op\np18\nVcall\np19\nsasVblocks\np20"
    "\n(lp21\n(dp22\nVsize\np23\nI4096\nsVrequested_size\np24\nI4000\nsVstate\np25\nVactiv"
    "e_allocated\np26\nsg10\ng11\nsVhistory\np27\n(lp28\n(dp29\nVreal_size\np30\nI4000\nsV"
    "ok\np31\nI01\nsVnone\np32\nNsasasVregistered\np33\n(lp34\nI01\naI00\naI-1\naF1.5\naF1"
    "e+300\nasasVdevice_traces\np35\n(lp36\n(lp37\n(dp38\nVaction\np39\nValloc\np40\nsVadd"
    "r\np41\nL70368744177664L\nsg23\nI4096\nsg7\nI0\nsVtime_us\np42\nL1700000000000000L\ns"
    "g10\ng11\nsVcompile_context\np43\nV0/1\np44\nsVbig\np45\nL4611686018427387904L\nsVlit"
    "tle\np46\nL-4611686018427387904L\nsaasVallocator_settings\np47\n(dp48\nVexpandable_se"
    "gments\np49\nI01\nsVmax_split_size\np50\nI-1\nsVroundup\np51\n(dp52\nVa\np53\nF0.1\ns"
    "ssVexternal_annotations\np54\n(lp55\n(dp56\nVstage\np57\nVSTART\np58\nsg16\nVoptimize"
    "r\\u000a\np59\nsg4\nI0\nsasVlater\np60\n(dp61\nVk\np62\n(lp63\n(lp64\na(dp65\na(I1\nI"
    "2\ntp66\nass.";
/* pickle.dumps(snapshot, protocol=1) of Python 3 */
static const char protocol_1[] =
    "}q\000(X\010\000\000\000segmentsq\001]q\002}q\003(X\006\000\000\000deviceq\004K\000X\007"
    "\000\000\000addressq\005L70368744177664L\nX\n\000\000\000total_sizeq\006M\000\020X\006"
    "\000\000\000streamq\007K\000X\014\000\000\000segment_typeq\010X\005\000\000\000smallq"
    "\011X\006\000\000\000framesq\n]q\013}q\014(X\010\000\000\000filenameq\015X\023\000\000"
    "\000gr\303\266\303\237e \342\202\254 \360\237\230\200.pyq\016X\004\000\000\000lineq\017"
    "K\007X\004\000\000\000nameq\020X\004\000\000\000f\"'\\q\021X\n\000\000\000fx_node_opq"
    "\022X\004\000\000\000callq\023uaX\006\000\000\000blocksq\024]q\025}q\026(X\004\000\000"
    "\000sizeq\027M\000\020X\016\000\000\000requested_sizeq\030M\240\017X\005\000\000\000s"
    "tateq\031X\020\000\000\000active_allocatedq\032h\nh\013X\007\000\000\000historyq\033]"
    "q\034}q\035(X\011\000\000\000real_sizeq\036M\240\017X\002\000\000\000okq\037I01\nX\004"
    "\000\000\000noneq NuauaX\n\000\000\000registeredq!]q\"(I01\nI00\nJ\377\377\377\377G\077"
    "\370\000\000\000\000\000\000G~7\344<\210\000u\234euaX\015\000\000\000device_tracesq#]"
    "q$]q%}q&(X\006\000\000\000actionq'X\005\000\000\000allocq(X\004\000\000\000addrq)L703"
    "68744177664L\nh\027M\000\020h\007K\000X\007\000\000\000time_usq*L1700000000000000L\nh"
    "\nh\013X\017\000\000\000compile_contextq+X\003\000\000\0000/1q,X\003\000\000\000bigq-"
    "L4611686018427387904L\nX\006\000\000\000littleq.L-4611686018427387904L\nuaaX\022\000\000"
    "\000allocator_settingsq/}q0(X\023\000\000\000expandable_segmentsq1I01\nX\016\000\000\000"
    "max_split_sizeq2J\377\377\377\377X\007\000\000\000roundupq3}q4X\001\000\000\000aq5G\077"
    "\271\231\231\231\231\231\232suX\024\000\000\000external_annotationsq6]q7}q8(X\005\000"
    "\000\000stageq9X\005\000\000\000STARTq:h\020X\n\000\000\000optimizer\nq;h\004K\000uaX"
    "\005\000\000\000laterq<}q=X\001\000\000\000kq>]q\077(]q@}qA(K\001K\002tqBesu.";
/* clang-format on */

#endif
