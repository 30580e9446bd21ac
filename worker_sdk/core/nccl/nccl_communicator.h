// SPDX-License-Identifier: Apache-2.0
// Collectives over NCCL (docs/nccl.md). Operations run on one separate high-priority stream, after
// the work that the caller's current stream holds when they start.
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

// One communicator's limits from a failure until the process is gone. The four follow one another,
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
  int device = 0;          // this rank's device, by the CUDA runtime's index
  std::string key_prefix;  // starts this communicator's keys; fresh for each communicator and round

  std::chrono::milliseconds timeout = kDefaultTimeout;       // default deadline of each operation
  std::chrono::milliseconds init_timeout = kDefaultTimeout;  // until all ranks have joined

  // After a failure: time to report it, and to abort. Without one: time for operations under way to
  // end.
  std::chrono::milliseconds abort_timeout = kAbortTimeout;
  // After that, without a failure: time to destroy the communicator, or to abort it if its
  // operations don't end.
  std::chrono::milliseconds destroy_timeout = kDestroyTimeout;
  // Afterwards: time to free what the communicator had on the device. After a failure: also the
  // time for each buffer, until one is not taken back.
  std::chrono::milliseconds free_timeout = kFreeTimeout;
  // Time for the process' exit handlers, once something failed or its abort or destroy hangs. The
  // shortest of all communicators counts.
  std::chrono::milliseconds exit_timeout = kExitTimeout;

  // Empty: follow_stream() sets it; until then it is the legacy default stream.
  CurrentStream current_stream;

  // wait() also blocks the calling thread until the result is there, so that errors come from it.
  bool blocking_wait = false;
  // The flight recorder has each operation's time on the device. This costs one more event for
  // each.
  bool time_operations = false;

  // How often a rank that waits long checks whether another one has given up. It begins once an
  // operation is this old; a healthy run never checks.
  std::chrono::milliseconds peer_check_interval{1'000};

  // How long to wait after a time-out for the other ranks to say that they wait, too. So the error
  // can name those that don't.
  std::chrono::milliseconds missing_ranks_grace{500};

  // Opens a separate connection to the store when first needed, after something went wrong. Empty:
  // other ranks learn of this one's end from NCCL alone.
  std::function<std::unique_ptr<store::Store>()> connect_store;

  // Called when a call of NCCL did not return in its time after a failure, ncclCommAbort included.
  // Nothing on this GPU can be trusted to end, not even the process' own exit handlers. Default:
  // one log line, then _exit(75).
  std::function<void(std::string_view message)> on_hung_abort;

  // Counts operations, and says when the agent knows of a lost peer; shared with the session. Null:
  // neither.
  std::shared_ptr<WorkerProgress> progress{};

  // The ranks of a split() meet here, on the caller's thread. Shared with the session. Null:
  // split() throws Error(kInvalidArgument).
  std::shared_ptr<store::Store> split_store{};
  RankGroup group{};  // this communicator's ranks, if it comes from a split

  NcclConfig config{};  // also used for the groups of a split()

  int max_ranks_per_root = 128;  // with more ranks there are several unique ids (NCCL ≥ 2.23)
};

// Makes a Communicator with these further rules. Buffers are on options.device. Work::wait() orders
// the caller's current stream after the operation and returns at once (blocking_wait: when the
// result is there). An error that comes later is thrown by the next call. Any failure ends the
// communicator on this rank, and the others are told; so does a split that fails. Calls from
// several threads at a time are serialised, in an undefined order. With one rank a sum or an
// average is no operation (unless blocking_wait): its wait() orders no streams.
//
// An operation that starts while the caller's stream captures a CUDA graph becomes part of it. Its
// Work counts as done, and each replay runs it, without a deadline. All ranks capture the same. The
// first operation of a kind must come before the capture, for NCCL connects in it. Destroy graphs
// before the communicator: NCCL's destroy and abort wait for them. Error(kInvalidArgument):
// barrier(), allocate() and split() in a capture; an operation on another stream meanwhile; waiting
// in a capture for an operation that began before it.
//
// barrier() blocks the calling thread until every rank has come, even without blocking_wait.
// allocate() gives registered ncclMemAlloc memory if the library has it; else cudaMalloc memory. It
// blocks until the memory is zeroed, and throws Error(kResourceExhausted) when the device is full.
// The buffer's destructor waits for operations under way, aborted ones too, and for the caller's
// current stream (nccl_buffer.h). The destructor of a healthy communicator waits for operations
// under way, at most abort_timeout (Watchdog::~Watchdog). Then it frees what it has on the device,
// within free_timeout.
//
// Collective. The store is used only during this call; its time-out is restored. Throws
// Error(kInvalidArgument) for options that can't be, and what set_up_comm throws.
std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<CudaApi> cuda,
                                                     const std::shared_ptr<NcclApi>& nccl,
                                                     store::Store& store,
                                                     const NcclOptions& options);

}  // namespace ddprun::nccl
