# SPDX-License-Identifier: Apache-2.0
# A part of the warm helper's program: the numbers of threads that a script sets. CMake puts it before warm_helper.py, which
# imports the modules that are used here.
THREAD_VARIABLES = "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"


def heed_thread_variables():
    """Lets the script set these variables, as before an import: a library that is loaded reads them no more."""
    torch, system = sys.modules.get("torch"), sys.modules["os"]
    if torch is None and "numpy" not in sys.modules:
        return
    put = system.putenv

    def putenv(name, value):
        put(name, value)
        if os.fsdecode(name) in THREAD_VARIABLES:
            use_threads(os.fsdecode(name), {**os.environ, os.fsdecode(name): os.fsdecode(value)}, torch)
    system.putenv = putenv  # os.environ calls it


def use_threads(changed, environment, torch):
    """Tells the libraries for which the variable `changed` counts. The others keep their numbers, which the script may have
    set."""
    def number_for(*names):  # the first one that has a number counts
        for name in names:
            value = environment.get(name, "").split(",")[0].strip()
            if value.isdecimal() and int(value) > 0:
                return int(value) if name == changed else None
        return None
    has_mkl = torch is not None and torch.backends.mkl.is_available()
    number = number_for(*(("MKL_NUM_THREADS", "OMP_NUM_THREADS") if has_mkl else ("OMP_NUM_THREADS",)))
    if torch is not None and number:
        torch.set_num_threads(number)
    number = number_for("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    if number:
        set_openblas_threads(number)


def set_openblas_threads(number):
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        libraries = {line.split(None, 5)[5].strip() for line in maps if "openblas" in line and len(line.split(None, 5)) == 6}
    for path in sorted(libraries):
        library = None
        with contextlib.suppress(OSError):  # its file was removed or replaced
            library = ctypes.CDLL(path)
        for name in ("openblas_set_num_threads", "openblas_set_num_threads64_", "scipy_openblas_set_num_threads64_",
                     "scipy_openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(number)
