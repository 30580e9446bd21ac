# SPDX-License-Identifier: Apache-2.0
"""The command lines with which torchrun and ddprun are compared. {dir}: the folder in which they run. {port}, {port2}:
free ports. answer.py has the programs."""
import dataclasses
import signal

# The intended differences: place → the row of docs/torchrun.md (the begin of its first column) that has the
# reason. "environment:NAME" is a variable of a worker.
EVERYWHERE = {
    "environment:MASTER_ADDR": "`MASTER_ADDR`",
    "environment:DDPRUN_*": "`DDPRUN_*`",
}
EXIT_CODE = {"exit_codes": "exit code of a failed job"}
SIGNAL_CODE = {"exit_codes": "exit code after SIGTERM"}
BAD_VALUE = {"exit_codes": "bad values"}
PREFIX = {"stdout": "lines of several workers", "stderr": "lines of several workers"}
RESTARTS = {"environment:TORCHELASTIC_RESTART_COUNT": "`TORCHELASTIC_RESTART_COUNT`"}


@dataclasses.dataclass
class Case:
    name: str
    nodes: list  # one command line for each launcher that takes part
    environment: dict = dataclasses.field(default_factory=dict)
    signal: int = 0  # sent to the first launcher when `waits_for` workers run
    waits_for: int = 0
    differs: dict = dataclasses.field(default_factory=dict)
    needs_torch: bool = False  # the workers import torch
    pending: str = ""          # a feature that ddprun does not have yet
    live: bool = False         # the recording is compared with the installed torchrun, too


def one(name, *arguments, **more):
    return Case(name, [list(arguments)], **more)


def logs(name, *arguments, **more):
    """Returns a case of two workers whose output goes to the places that `arguments` name."""
    return one("log_" + name, "--nproc-per-node=2", *arguments, "w.py", **more)


ELASTIC = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=j1")
STATIC = ("--master-addr=127.0.0.1", "--master-port={port}")
L = ("--log-dir", "{dir}/logs")
OWN_ERROR_FILE = {"TORCHELASTIC_ERROR_FILE": "{dir}/own.json"}

SIZES = [
    one("plain", "w.py", live=True),
    one("two_workers", "--nproc-per-node=2", "w.py", differs=PREFIX, live=True),
    one("underscores", "--nproc_per_node", "2", "--max_restarts", "3", "w.py", differs=PREFIX),
    one("standalone", "--standalone", "--nproc-per-node=2", "w.py", differs=PREFIX),
    one("abbreviated", "--rdzv-e", "localhost:0", "--rdzv-b=c10d", "--rdzv-i", "j1", "w.py"),
    one("one_to_one", "--nnodes=1:1", "w.py"),
    one("range_alone", "--nnodes=1:2", *ELASTIC, "--rdzv-conf=last_call_timeout=1", "w.py"),
    one("role", "--role=trainer", "w.py"),
    one("empty_role", "--role=", "w.py"),
    one("arguments_behind_dashes", "w.py", "--", "--lr", "1", "--", "x"),
    one("arguments_behind_dashes_module", "-m", "w", "--", "--lr", "1"),
    one("arguments", "w.py", "--nproc-per-node=9", "-m", "--", "a b", ""),
    one("local_rank_argument", "--nproc-per-node=2", "w.py", "", "d${local_rank}", "$local_rank", "${other}", "$$x",
        differs=PREFIX, live=True),
]

MEETING = [
    one("static", *STATIC, "w.py"),
    one("static_backend", "--rdzv-backend=static", "--rdzv-endpoint=127.0.0.1:{port}", "w.py"),
    one("master_port_alone", "--master-port={port}", "w.py"),
    one("master_addr_in_brackets", "--master-addr=[::1]", "--master-port={port}", "w.py"),
    one("endpoint_without_backend", "--rdzv-endpoint=127.0.0.1:{port}", "w.py",
        differs={"environment:MASTER_PORT": "`--rdzv-endpoint` without `--rdzv-backend`",
                 "environment:TORCHELASTIC_RUN_ID": "`--rdzv-id` not given"}),
    one("elastic", *ELASTIC, "w.py", live=True),
    one("elastic_free_port", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j1", "w.py"),
    one("local_addr", "--local-addr=127.0.0.3", "w.py"),
    one("node_rank_of_one_node", "--node-rank=1", "w.py"),
    one("conf_with_blanks", *ELASTIC, "--rdzv-conf", "join_timeout=60, last_call_timeout = 5", "w.py"),
    one("conf_unknown_key", *ELASTIC, "--rdzv-conf=foo=1", "w.py"),
    one("conf_empty_value", *ELASTIC, "--rdzv-conf=join_timeout=", "w.py", differs=BAD_VALUE),
    one("conf_not_key_value", *ELASTIC, "--rdzv-conf=join_timeout", "w.py", differs=BAD_VALUE),
    one("conf_timeouts", *ELASTIC, "--rdzv-conf=timeout=60,read_timeout=60,close_timeout=10,is_host=1", "w.py"),
    Case("two_nodes_elastic", [[*ELASTIC, "--nnodes=2", "--local-addr=127.0.0.1", "w.py"]] * 2),
    Case("two_nodes_static", [[*STATIC, "--nnodes=2", f"--node-rank={rank}", "w.py"] for rank in (0, 1)]),
    Case("two_nodes_port_only", [["--master-port={port}", "--nnodes=2", f"--node-rank={rank}", "w.py"]
                                 for rank in (0, 1)]),
    Case("static_range", [[*STATIC, "--nnodes=1:2", f"--node-rank={rank}", "w.py"] for rank in (0, 1)]),
    Case("roles", [[*STATIC, "--nnodes=2", f"--node-rank={rank}", f"--role=r{rank}", "--nproc-per-node=2", "w.py"]
                   for rank in (0, 1)], differs=PREFIX),
    Case("unequal_nodes", [[*STATIC, "--nnodes=2", f"--node-rank={rank}", f"--nproc-per-node={rank + 1}", "w.py"]
                           for rank in (0, 1)], differs=PREFIX),
]

ENVIRONMENT = [
    one("pet_size", "w.py", differs=PREFIX,
        environment={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "2", "PET_ROLE": "r"}),
    one("pet_elastic", "w.py", environment={"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0",
                                            "PET_RDZV_ID": "j2"}),
    one("pet_flag_wins", "--role=a", "w.py", environment={"PET_ROLE": "b"}),
    one("pet_static", "w.py", environment={"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "{port}"}),
    one("pet_master_port_alone", "w.py", environment={"PET_MASTER_PORT": "{port}"}),
    one("pet_standalone", "w.py", environment={"PET_STANDALONE": "1"}),
    one("pet_standalone_off", *STATIC, "w.py", environment={"PET_STANDALONE": "0"}),
    one("pet_standalone_yes", "w.py", environment={"PET_STANDALONE": "yes"},
        differs={"exit_codes": "`PET_STANDALONE=yes`", "workers": "`PET_STANDALONE=yes`",
                 "stdout": "`PET_STANDALONE=yes`", "stderr": "`PET_STANDALONE=yes`"}),
    one("pet_module", "pkm", environment={"PET_MODULE": "1"}),
    one("pet_no_python", "/bin/echo", "hi", environment={"PET_NO_PYTHON": "1"}),
    one("pet_signals", "w.py", environment={"PET_SIGNALS_TO_HANDLE": "SIGUSR2"}),
    one("omp_threads_given", "--nproc-per-node=2", "w.py", differs=PREFIX, environment={"OMP_NUM_THREADS": "3"}),
    one("variables_passed_on", "w.py", environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
                                                    "CUDA_VISIBLE_DEVICES": "", "RANK": "7", "MASTER_ADDR": "x"}),
    one("loglevel", "w.py", environment={"LOGLEVEL": "INFO"}),
    one("store_not_shared", "w.py", environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        differs={"environment:TORCHELASTIC_USE_AGENT_STORE": "who serves the store"}),
]

PROGRAMS = [
    one("module", "-m", "pkm", "x", live=True),
    one("module_long", "--module", "pkm", "x"),
    one("executable_script", "ex.py", "x"),
    one("script_with_slash", "./w.py", "x"),
    one("package", "pkg", "x"),
    one("run_path", "--run-path", "{dir}/w.py", "x",
        differs={"own_session": "`--run-path`", "write_through": "`--run-path`"}),
    one("no_python", "--no-python", "/bin/echo", "hi", "${local_rank}", "$$x"),
    one("no_python_in_path", "--no-python", "echo", "hi"),
    one("signals_exported", "--signals-to-handle=SIGTERM,SIGUSR1", "w.py"),
]

ACCEPTED = [
    one("monitor_interval", "--monitor-interval=5", "w.py"),
    one("monitor_interval_bad", "--monitor-interval=x", "w.py"),
    one("start_method", "--start-method=fork", "w.py"),
    one("start_method_bad", "--start-method=foo", "w.py"),
    one("events_null", "--event-log-handler=null", "w.py"),
    one("events_console", "--event-log-handler=console", "--nproc-per-node=2", "w.py", differs=PREFIX),
    one("events_failure", "--event-log-handler=console", "--max-restarts=1", "w.py", "exit", "3", "0",
        differs={**EXIT_CODE, "events": "last event of a failed job"}),
    one("events_unknown", "--event-log-handler=nosuch", "w.py", differs=BAD_VALUE),
]

FAILURES = [
    one("exit_3", "--nproc-per-node=2", "w.py", "exit", "3", "1", differs={**PREFIX, **EXIT_CODE}),
    one("killed", "--nproc-per-node=2", "w.py", "kill", "11", "1", differs={**PREFIX, **EXIT_CODE}),
    one("restart_that_helps", "--max-restarts=2", "w.py", "fail-first"),
    one("restarts_used_up", "--max-restarts=1", "w.py", "exit", "3", "0", differs=EXIT_CODE),
    one("own_error_file", "--nproc-per-node=2", "recorded.py", "raise", "1", environment=OWN_ERROR_FILE,
        differs=PREFIX, needs_torch=True, live=True),
    one("own_error_file_without_record", "w.py", "exit", "3", "0", environment=OWN_ERROR_FILE, differs=EXIT_CODE),
    one("no_nodes", "--nnodes=0", "w.py", differs=BAD_VALUE),
    one("no_workers", "--nproc-per-node=0", "w.py", differs=BAD_VALUE),
    one("module_without_python", "-m", "--no-python", "pkm", differs=BAD_VALUE),
    one("unknown_flag", "--nosuch", "w.py"),
    one("no_program"),
    one("program_not_found", "nosuch.py", differs={"exit_codes": "a program that isn't there"}),
]

SIGNALS = [
    one(f"sent_{signal.Signals(number).name}", "--nproc-per-node=2", "w.py", "wait", signal=number, waits_for=2,
        differs={**PREFIX, **SIGNAL_CODE})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
] + [
    one("sent_one_that_is_handled", "--signals-to-handle=SIGUSR1", "w.py", "wait", signal=signal.SIGUSR1,
        waits_for=1, differs=SIGNAL_CODE),
]

LOGS = [
    logs("dir", *L, differs=PREFIX),
    logs("redirect_all", *L, "-r", "3"),
    logs("redirect_stdout", *L, "--redirects=1", differs={"stderr": PREFIX["stderr"]}),
    logs("redirect_by_rank", *L, "-r", "0:1,1:2", differs=PREFIX),
    logs("tee_all", *L, "-t", "3"),
    logs("tee_one_rank", *L, "--tee", "0:3", differs=PREFIX),
    logs("tee_and_redirect", *L, "-t", "1", "-r", "2"),
    logs("redirect_bad", "-r", "4", differs=BAD_VALUE),
    logs("redirect_no_such_rank", *L, "-r", "5:3", differs=PREFIX),
    logs("template", *L, "-t", "3", "--role=tr", "--log-line-prefix-template",
         "<${role_name}|${local_rank}|${rank}|${foo}> "),
    logs("template_variable", *L, "-t", "3", environment={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "E${rank}: "}),
    logs("ranks_filter", "--local-ranks-filter=1", differs=PREFIX),
    logs("ranks_filter_and_tee", *L, "--local_ranks_filter=0", "-t", "3"),
    logs("ranks_filter_bad", "--local-ranks-filter=a", differs=BAD_VALUE),
    logs("duplicates", *L, "-t", "3", "--duplicate-stdout-filters=apple,zzz", "--duplicate-stderr-filters=pear"),
    logs("duplicates_without_tee", *L, "--duplicate-stdout-filters=apple", differs=PREFIX),
    logs("dev_null", "--log-dir=/dev/null", "-t", "3",
         differs={**PREFIX, "environment:TORCHELASTIC_ERROR_FILE": "`--log-dir=/dev/null`"}),
    logs("dir_is_a_file", "--log-dir={dir}/w.py", "-t", "3", differs=BAD_VALUE),
    logs("by_variables", environment={"PET_LOG_DIR": "{dir}/logs", "PET_TEE": "3", "PET_REDIRECTS": "0"}),
    one("log_attempts", *L, "-t", "3", "--max-restarts=1", "w.py", "fail-first"),
]

DEVICES = [
    one("virtual_local_rank", "--virtual-local-rank", "--nproc-per-node=2", "w.py", differs=PREFIX,
        environment={"CUDA_VISIBLE_DEVICES": "4,6"}),
]

CASES = [*SIZES, *MEETING, *ENVIRONMENT, *PROGRAMS, *ACCEPTED, *FAILURES, *SIGNALS, *LOGS, *DEVICES]
