// SPDX-License-Identifier: Apache-2.0
// The name of every environment variable that ddprun reads or sets for its workers.
#pragma once

#include <array>
#include <string_view>

namespace ddprun::env {

// These are torchrun's variables, set for each worker.
inline constexpr char kRank[] = "RANK";
inline constexpr char kLocalRank[] = "LOCAL_RANK";
// It is set with --virtual-local-rank, where LOCAL_RANK is 0 for all.
inline constexpr char kTrueLocalRank[] = "DDPRUN_LOCAL_RANK";
inline constexpr char kGroupRank[] = "GROUP_RANK";  // node rank
inline constexpr char kRoleRank[] = "ROLE_RANK";
inline constexpr char kRoleName[] = "ROLE_NAME";
inline constexpr char kWorldSize[] = "WORLD_SIZE";
inline constexpr char kLocalWorldSize[] = "LOCAL_WORLD_SIZE";
inline constexpr char kGroupWorldSize[] = "GROUP_WORLD_SIZE";  // number of nodes
inline constexpr char kRoleWorldSize[] = "ROLE_WORLD_SIZE";
inline constexpr char kMasterAddr[] = "MASTER_ADDR";
inline constexpr char kMasterPort[] = "MASTER_PORT";
inline constexpr char kRestartCount[] = "TORCHELASTIC_RESTART_COUNT";  // round − 1
inline constexpr char kMaxRestarts[] = "TORCHELASTIC_MAX_RESTARTS";
inline constexpr char kRunId[] = "TORCHELASTIC_RUN_ID";
inline constexpr char kUseAgentStore[] = "TORCHELASTIC_USE_AGENT_STORE";
inline constexpr char kLogLinePrefixTemplate[] = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
inline constexpr char kEnableFileTimer[] = "TORCHELASTIC_ENABLE_FILE_TIMER";
inline constexpr char kTimerFile[] = "TORCHELASTIC_TIMER_FILE";
inline constexpr char kErrorFile[] = "TORCHELASTIC_ERROR_FILE";
inline constexpr char kSignalsToHandle[] = "TORCHELASTIC_SIGNALS_TO_HANDLE";
inline constexpr char kNcclAsyncErrorHandling[] = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
inline constexpr char kOmpNumThreads[] = "OMP_NUM_THREADS";
inline constexpr char kGlooInterface[] = "GLOO_SOCKET_IFNAME";
inline constexpr char kTensorPipeInterface[] = "TP_SOCKET_IFNAME";
inline constexpr char kNcclInterface[] = "NCCL_SOCKET_IFNAME";
inline constexpr char kCudaVisibleDevices[] = "CUDA_VISIBLE_DEVICES";
inline constexpr char kHipVisibleDevices[] = "HIP_VISIBLE_DEVICES";

// These are ddprun's own, set for each worker.
inline constexpr char kRound[] = "DDPRUN_ROUND";         // 1, 2, …
inline constexpr char kNodeAddr[] = "DDPRUN_NODE_ADDR";  // this node, as peers reach it
inline constexpr char kMasterNodeAddr[] = "DDPRUN_MASTER_NODE_ADDR";  // the same for node rank 0
// The agent's Unix socket for its workers (docs/agent-socket.md).
inline constexpr char kAgentSocket[] = "DDPRUN_AGENT_SOCKET";
// "inplace": a worker whose peer has died may go on in the next round (docs/inplace.md). Otherwise
// it is unset.
inline constexpr char kRecovery[] = "DDPRUN_RECOVERY";
// The width of the agent's terminal, with several workers on the node; unset without a terminal.
inline constexpr char kTerminalColumns[] = "DDPRUN_TERMINAL_COLUMNS";

// Names above that a worker never gets from its user: ddprun sets or removes them.
inline constexpr std::array<std::string_view, 23> kOfWorkers = {
    kRank,         kLocalRank,      kTrueLocalRank,  kGroupRank,     kRoleRank,   kRoleName,
    kWorldSize,    kLocalWorldSize, kGroupWorldSize, kRoleWorldSize, kMasterAddr, kMasterPort,
    kRestartCount, kMaxRestarts,    kRunId,          kUseAgentStore, kErrorFile,  kSignalsToHandle,
    kRound,        kNodeAddr,       kMasterNodeAddr, kAgentSocket,   kRecovery};

// spawn() sets it for its ranks (docs/spawn.md): "<call> <rank> <descriptor>".
inline constexpr char kSpawn[] = "DDPRUN_SPAWN";

// The worker SDK reads these: the file to load instead of the one that a search would find.
inline constexpr char kNcclLibrary[] = "DDPRUN_NCCL_LIBRARY";
inline constexpr char kCudartLibrary[] = "DDPRUN_CUDART_LIBRARY";

// The worker SDK reads these (docs/flight-recorder.md). The first is how many operations the flight
// recorder holds (0: off), the second a directory for its files in place of the error file's.
inline constexpr char kFlightRecorderSize[] = "DDPRUN_FLIGHT_RECORDER_SIZE";
inline constexpr char kFlightRecorderDir[] = "DDPRUN_FLIGHT_RECORDER_DIR";
// Words separated by commas: "collectives" compares calls before NCCL's, "nan" looks for NaN in
// gradients, "times" measures NCCL's operations on the GPU.
inline constexpr char kDebug[] = "DDPRUN_DEBUG";
// It is for tests alone; a build without tests and bench doesn't read it
// (worker_sdk/core/nccl/device_identity.h).
inline constexpr char kTestGpu[] = "DDPRUN_TEST_GPU";

// ddprun reads it: the file to load in place of the NVML that a search would find.
inline constexpr char kNvmlLibrary[] = "DDPRUN_NVML_LIBRARY";

// ddprunctl doctor reads it: a file of thresholds, if no flag names one.
inline constexpr char kDoctorThresholds[] = "DDPRUN_DOCTOR_THRESHOLDS";

// NCCL reads these. The first is the address of its RAS service. The second tells whether the
// device keeps the order in which a thread launches on several communicators (1; NCCL ≥ 2.26). The
// third says whether communicators are blocking, and wins over their configuration.
inline constexpr char kNcclRasAddr[] = "NCCL_RAS_ADDR";
inline constexpr char kNcclLaunchOrderImplicit[] = "NCCL_LAUNCH_ORDER_IMPLICIT";
inline constexpr char kNcclCommBlocking[] = "NCCL_COMM_BLOCKING";

// The launcher reads these.
inline constexpr char kRdzvEndpoint[] = "DDPRUN_RDZV_ENDPOINT";
inline constexpr char kPetRdzvEndpoint[] = "PET_RDZV_ENDPOINT";
inline constexpr char kPetMasterAddr[] = "PET_MASTER_ADDR";
inline constexpr char kPetMasterPort[] = "PET_MASTER_PORT";
inline constexpr char kRdzvId[] = "DDPRUN_RDZV_ID";
inline constexpr char kPetRdzvId[] = "PET_RDZV_ID";
// PET_<FLAG> (upper case, "_" for "-") gives a flag its value where the command line has none.
inline constexpr char kPetPrefix[] = "PET_";
inline constexpr char kOwnPrefix[] = "DDPRUN_";  // the same, but it wins over PET_
// A path; ddprund and ddprunctl read it, too.
inline constexpr char kTokenFile[] = "DDPRUN_TOKEN_FILE";
inline constexpr char kConfig[] = "DDPRUN_CONFIG";
inline constexpr char kShutdownTimeout[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";         // torchrun's
inline constexpr char kExitBarrierTimeout[] = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT";  // torchrun's
// torchrun's: DEBUG, INFO, WARNING, ERROR, CRITICAL.
inline constexpr char kLogLevel[] = "LOGLEVEL";
inline constexpr char kPythonExec[] = "PYTHON_EXEC";
inline constexpr char kPythonPath[] = "PYTHONPATH";
inline constexpr char kPath[] = "PATH";
inline constexpr char kTmpdir[] = "TMPDIR";
inline constexpr char kHome[] = "HOME";
inline constexpr char kXdgConfigHome[] = "XDG_CONFIG_HOME";
inline constexpr char kXdgCacheHome[] = "XDG_CACHE_HOME";
inline constexpr char kXdgStateHome[] = "XDG_STATE_HOME";
// A folder that all nodes of a Slurm step share; empty: there is none (docs/security.md).
inline constexpr char kSharedDir[] = "DDPRUN_SHARED_DIR";

// sshd sets it to "CLIENT PORT SERVER PORT"; the agent of --hosts reads it (docs/ssh.md).
inline constexpr char kSshConnection[] = "SSH_CONNECTION";
// That agent sets it for its ddprun: which descriptors it has.
inline constexpr char kUnderChannel[] = "DDPRUN_UNDER_CHANNEL";
// ddprunctl submit sets it for the ddprun of a job over ssh: the job's id, by which ddprunctl finds
// the job's processes again (docs/submit.md).
inline constexpr char kSubmittedAs[] = "DDPRUN_SUBMITTED_AS";

// These are Slurm's, for the step that ddprun runs in.
inline constexpr char kSlurmJobId[] = "SLURM_JOB_ID";
inline constexpr char kSlurmJobNumNodes[] = "SLURM_JOB_NUM_NODES";  // nodes of all steps
inline constexpr char kSlurmStepId[] = "SLURM_STEP_ID";
inline constexpr char kSlurmClusterName[] = "SLURM_CLUSTER_NAME";
inline constexpr char kSlurmRestartCount[] = "SLURM_RESTART_COUNT";  // of the job; unset: 0
inline constexpr char kSlurmStepNodelist[] = "SLURM_STEP_NODELIST";
inline constexpr char kSlurmStepNumTasks[] = "SLURM_STEP_NUM_TASKS";
inline constexpr char kSlurmNodeId[] = "SLURM_NODEID";            // 0 = first node of the list
inline constexpr char kSlurmJobEndTime[] = "SLURM_JOB_END_TIME";  // seconds since 1970
// Switches and node, separated by dots.
inline constexpr char kSlurmTopologyAddr[] = "SLURM_TOPOLOGY_ADDR";
inline constexpr char kSlurmTopologyAddrPattern[] = "SLURM_TOPOLOGY_ADDR_PATTERN";

// These are PBS', for the job that ddprun runs in.
inline constexpr char kPbsJobId[] = "PBS_JOBID";
// The path of a file with a host on each line.
inline constexpr char kPbsNodeFile[] = "PBS_NODEFILE";
inline constexpr char kPbsTaskNumber[] = "PBS_TASKNUM";  // 1: the job's script
// The kubelet sets it in the pods of an Indexed Job: 0 = the first one.
inline constexpr char kJobCompletionIndex[] = "JOB_COMPLETION_INDEX";

}  // namespace ddprun::env
