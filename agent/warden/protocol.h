// SPDX-License-Identifier: Apache-2.0
// The messages between agent and warden over one SOCK_SEQPACKET pair. Their sizes are fixed, never
// longer than the structs below; both ends are one build on one machine. docs/internals/warden.md.
// Plain data: the warden has no C++ library.
#pragma once

#include <stdint.h>

namespace ddprun::agent::warden {

inline constexpr int kSocketFd = 3;  // the warden's end, in the warden
inline constexpr int kCgroupFd = 4;  // the workers' cgroup, locked, if its name is an argument
// The following descriptors are listed in the third argument, if there is one ("5:812,6:813",
// descriptor and pid). They are sockets to children of the warden that wait to become workers
// (agent/warm). Each takes a Request of kSpawn with its descriptors, stdin to stderr, then the pipe
// for a SpawnError, then its cgroup if it has one.
inline constexpr int kFirstWarmFd = 5;
// The one file in the directory that is the warden's argument, if any. The warden removes both at
// its end.
inline constexpr char kSocketName[] = "agent.sock";
inline constexpr uint32_t kVersion = 11;  // the two sides differ after an incomplete installation
inline constexpr uint32_t kMaxUnanswered = 16;  // SPAWN requests under way

enum class RequestType : uint32_t {
  // It has 4 descriptors: payload (memfd), stdin, stdout, stderr; or 5: also the worker's cgroup.
  kSpawn = 1,
  // Sends `signal_number` and SIGCONT; then kEmpty is due. No kSpawn may follow. A further kStop
  // sends the signal to those that the first one left to their parents.
  kStop = 3,
  kKill = 4,   // SIGKILL to every descendant until none is left; then kEmpty is due
  kWarn = 6,   // `signal_number` to the workers that have a handler for it; see Warden
  kClear = 7,  // SIGKILL to what the worker that was `ended_pid` left behind in its session
  kLease = 5,  // at lease_until_ms kFenced, and as kKill, unless a newer lease comes
};

inline constexpr int kCpuWords = 1024 / 64;  // CpuSet::kMostCpus

struct Request {
  uint32_t version = kVersion;
  RequestType type = RequestType::kSpawn;
  uint32_t worker = 0;         // the agent's index
  int32_t signal_number = 0;   // kStop, kWarn
  uint32_t num_arguments = 0;  // kSpawn: the payload is the working directory, then the arguments,
  uint32_t num_variables = 0;  // then the environment, each ended by a zero byte
  uint64_t payload_bytes = 0;
  uint64_t max_open_files = 0;    // kSpawn: the worker's soft RLIMIT_NOFILE; 0: as the warden's
  uint64_t cpus[kCpuWords] = {};  // kSpawn: CPUs it may use, lowest first; none: as the warden's
  int64_t lease_until_ms = 0;     // kLease: CLOCK_MONOTONIC; 0: for ever
  int64_t ended_pid = 0;          // kClear
};

inline constexpr int kNumSpawnFds = 4;
inline constexpr int kMostSpawnFds = 5;

enum class ReportType : uint32_t {
  kReady = 1,       // the warden is up: pid = its own
  kStarted = 2,     // exec succeeded: worker, pid; stage and error_number of kFresh
  kNotStarted = 3,  // worker, error_number, stage; nothing runs
  kExited = 4,      // worker, pid, wait_status; comes after kStarted
  kEmpty = 5,       // after kStop or kKill: no descendant is left
  kFenced = 6,      // the lease has run out: every descendant is being killed
};

enum class Stage : uint32_t {
  kNone = 0,
  kFork = 1,
  kDirectory = 2,
  kExec = 3,
  kRequest = 4,
  kCpus = 5,
  kCgroup = 6,  // the worker's own cgroup could not be entered
  kFresh = 7,   // no error: a waiting child becomes a fresh program; error_number is a Fresh
};

// Why a child that has imported modules does not run the worker itself.
enum class Fresh : int32_t {
  kCpus = 1,  // it is bound to CPUs without OMP_NUM_THREADS: libraries counted other CPUs
  kPythonVariables = 2,  // Python read other values of its variables when it began
  kVariables = 3,        // an import has set a variable to another value
  kProgram = 4,          // there is no source text
};

// Written into a new worker's pipe if it fails. If the worker runs, it closes the pipe without it.
// kFresh may come before that.
struct SpawnError {
  int32_t error_number = 0;
  Stage stage = Stage::kNone;
};

struct Report {
  uint32_t version = kVersion;
  ReportType type = ReportType::kReady;
  uint32_t worker = 0;
  int32_t pid = 0;
  int32_t wait_status = 0;  // as waitpid(2) gives it
  int32_t error_number = 0;
  Stage stage = Stage::kNone;
  uint32_t reserved = 0;
  uint64_t max_resident_kb = 0;  // kExited: the worker's peak
  int64_t at_ns = 0;             // CLOCK_MONOTONIC, when the warden saw it
};

}  // namespace ddprun::agent::warden
