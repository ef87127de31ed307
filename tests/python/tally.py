# SPDX-License-Identifier: MIT-0 OR Unlicense
"""Cases in the order of a file: what failed, and how many."""
import re
import traceback

cases = []


def case(function):
    cases.append(function)
    return function


def raises(kind, pattern, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as e:
        assert re.search(pattern, str(e), re.S), str(e)
        return e
    raise AssertionError(f"no {kind.__name__}")


def finish():
    failed = 0
    for function in cases:
        try:
            function()
            print("ok", function.__name__, flush=True)
        except BaseException:
            failed += 1
            print("not ok", function.__name__, flush=True)
            traceback.print_exc()
    print(f"{len(cases) - failed} passed, {failed} failed")
    return failed != 0
