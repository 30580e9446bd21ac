// SPDX-License-Identifier: Apache-2.0
// Collectives over NCCL (docs/nccl.md). Operations run on one high-priority stream of their own,
// behind what the caller's current stream holds when they start.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/rank_group.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun::nccl {

// One communicator's limits from a failure until the process is gone: the four follow one another,
// no more than 15 s together. Those of several communicators add up. docs/nccl.md says which calls
// have no limit.
inline constexpr std::chrono::milliseconds kAbortTimeout{8'000};
inline constexpr std::chrono::milliseconds kDestroyTimeout{3'000};
inline constexpr std::chrono::milliseconds kFreeTimeout{2'000};
inline constexpr std::chrono::milliseconds kExitTimeout{2'000};
static_assert(kAbortTimeout + kDestroyTimeout + kFreeTimeout + kExitTimeout <=
              std::chrono::seconds(15));

struct NcclOptions {
  int rank = 0;
  int size = 1;
  int device = 0;          // this rank's, by the CUDA runtime's index
  std::string key_prefix;  // of this communicator's keys; fresh for each communicator and round

  std::chrono::milliseconds timeout = kDefaultTimeout;       // default deadline of each operation
  std::chrono::milliseconds init_timeout = kDefaultTimeout;  // until all ranks have joined

  // After a failure: to report it, and to abort. Without one: for operations under way to end.
  std::chrono::milliseconds abort_timeout = kAbortTimeout;
  // After that, without a failure: to destroy the communicator, or to abort it if its operations
  // don't end.
  std::chrono::milliseconds destroy_timeout = kDestroyTimeout;
  // Afterwards: to free what the communicator had on the device. After a failure: also for each
  // buffer, until one is not taken back.
  std::chrono::milliseconds free_timeout = kFreeTimeout;
  // For the process' exit handlers, once something failed or its abort or destroy hangs: the
  // shortest of all communicators.
  std::chrono::milliseconds exit_timeout = kExitTimeout;

  // Empty: follow_stream() says it; until then the legacy default stream.
  CurrentStream current_stream;

  // wait() also blocks the calling thread until the result is there, so that errors come from it.
  bool blocking_wait = false;
  // The flight recorder has each operation's time on the device: an event more for each.
  bool time_operations = false;

  // How often a rank that waits long looks whether another one has given up, from this age of an
  // operation on. A healthy run never looks.
  std::chrono::milliseconds peer_check_interval{1'000};

  // How long to wait after a time-out for the other ranks to say that they wait, too. So the error
  // can name those that don't.
  std::chrono::milliseconds missing_ranks_grace{500};

  // A connection to the store of its own, made when first needed: when something is wrong. Empty:
  // other ranks learn of this one's end from NCCL alone.
  std::function<std::unique_ptr<store::Store>()> connect_store;

  // A call of NCCL did not return in its time after a failure, ncclCommAbort included. Nothing on
  // this GPU can be trusted to end, not even the process's own exit handlers. Default: one log
  // line, then _exit(75).
  std::function<void(std::string_view message)> on_hung_abort;

  // Counts operations, and says when the agent knows of a lost peer; second owner: the session.
  // Null: neither.
  std::shared_ptr<WorkerProgress> progress{};

  // The ranks of a split() meet here, on the caller's thread. Second owner: the session. Null:
  // split() throws Error(kInvalidArgument).
  std::shared_ptr<store::Store> split_store{};
  RankGroup group{};  // of this communicator, where it is one of a split

  NcclConfig config{};  // also of the groups of a split()

  int max_ranks_per_root = 128;  // more ranks: several unique ids (NCCL ≥ 2.23)
};

// As Communicator says, and: buffers are on options.device. Work::wait() orders the caller's
// current stream behind the operation and returns at once (blocking_wait: when the result is
// there). The next call throws an error that comes later. Any failure ends the communicator on this
// rank, and the others are told; so does a split that fails. Calls from several threads at a time
// are serialised, their order is then undefined.
//
// An operation that starts while the caller's stream captures a CUDA graph becomes part of it. Its
// Work counts as done, and each replay runs it, without a deadline. All ranks capture the same; the
// first operation of a kind comes before, for NCCL connects in it. Graphs go before the
// communicator: NCCL's destroy and abort wait for them. Error(kInvalidArgument): barrier(),
// allocate() and split() in a capture; an operation on another stream meanwhile; waiting in a
// capture for an operation that began before it.
//
// barrier() blocks the calling thread until every rank has come, whatever blocking_wait says.
// allocate(): ncclMemAlloc memory, registered, where the library has it; else cudaMalloc. Blocks
// until it is zeroed. The buffer's destructor waits for operations under way, aborted ones too, and
// for the caller's current stream (nccl_buffer.h). Throws Error(kResourceExhausted) when the device
// is full. The destructor of a healthy communicator waits for operations under way, at most
// abort_timeout (Watchdog::~Watchdog). Then it frees what it has on the device, within
// free_timeout.
//
// Collective. The store is used during this call only; its time-out is restored. Throws
// Error(kInvalidArgument) for options that can't be, and what set_up_comm throws.
std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<CudaApi> cuda,
                                                     const std::shared_ptr<NcclApi>& nccl,
                                                     store::Store& store,
                                                     const NcclOptions& options);

}  // namespace ddprun::nccl
