// SPDX-License-Identifier: Apache-2.0
// train: the main job's worker. There is one process per rank. Each reads the data, meets the
// others through the launcher's environment, and trains the same net on its share of the images.
#include <c10/util/Exception.h>
#include <malloc.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "apps/train/idx_file.h"
#include "apps/train/options.h"
#include "apps/train/trainer.h"
#include "common/clock.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/text.h"
#include "worker_sdk/core/rank_threads.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/core/solo_communicator.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/load_cuda.h"

using namespace ddprun;
using namespace ddprun::train;

namespace {

constexpr int kFailed = 1;
// A full disk, an I/O error or no memory: sysexits' EX_IOERR, also ddprun's status for lost output.
constexpr int kSystemRefused = static_cast<int>(ExitCode::kOutputLost);

int exit_status_for(ErrorCode code) {
  if (code == ErrorCode::kInvalidArgument) return static_cast<int>(ExitCode::kUsage);
  const bool refused = code == ErrorCode::kSystem || code == ErrorCode::kResourceExhausted;
  return refused ? kSystemRefused : kFailed;
}

int say(const std::string& what, int exit_status) {
  const char* rank = std::getenv(env::kRank);
  std::fprintf(stderr, "train: rank %s: %s\n", rank ? rank : "0", what.c_str());
  return exit_status;
}

// If the CPU's allocator gets no memory, LibTorch reports that only by the error's text.
int say(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                         text.find("can't allocate memory") != std::string::npos;
  return say((no_memory ? "out of memory: " : "LibTorch: ") + text.substr(0, text.find('\n')),
             no_memory ? kSystemRefused : kFailed);
}

// This process' place in the job: with a launcher a session and its communicator, else a
// communicator for one rank.
struct Worker {
  std::unique_ptr<Session> session;  // null: no launcher
  std::unique_ptr<Communicator> communicator;
  WorkerEnv env{};
  bool recovered = false;  // it recovered in place
};

// A net's activations are allocated and freed in each step. Without this glibc returns them to the
// system, and every step pays for fresh zeroed pages again.
void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

bool is_rank_zero() {
  const char* rank = std::getenv(env::kRank);
  return !rank || std::string_view(rank) == "0";
}

// Returns whether the training has one model on all ranks after each step, so that any of them can
// go on with it.
bool can_go_on_in_place(const Options& options) {
  return options.snapshot_every > 0 && options.parallel.empty() && !has_local_steps(options) &&
         options.ignore_parameters.empty() && options.broadcast_buffers;
}

// Makes the communicator. Ranks may have different devices, so they agree on a backend, and every
// rank knows the reason.
void meet(Worker& worker, const Options& options) {
  worker.env = worker.session->env();
  worker.communicator = worker.session->make_communicator(
      options.backend,
      {.timeout = options.operation_timeout, .current_stream = current_torch_stream});
}

Worker join_job(const Options& options) {
  Worker worker;
  if (!std::getenv(env::kWorldSize)) {
    if (options.backend == BackendChoice::kNccl) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--backend nccl: no launcher (WORLD_SIZE is not set): start it with ddprun "
                  "--standalone --nproc_per_node=1, or use --backend auto");
    }
    worker.communicator = make_solo_communicator();
    return worker;
  }
  worker.session = Session::from_env({.nccl_loader = load_cuda_and_nccl});
  if (can_go_on_in_place(options)) worker.session->offer_recovery();
  meet(worker, options);
  return worker;
}

// Runs one rank's whole training, and returns its exit status.
int train_as(const Options& options, const DataSet& data, const std::string& data_dir,
             const Place& place, const WorkerEnv& env, Clock::time_point start) {
  const Communicator& communicator = place.communicator;
  const int rank = communicator.rank();
  Progress progress(stdout, terminal_columns(), rank != 0);
  set_compute_threads(options.num_threads, env.local_world_size);

  progress.line(concat("train: ", data.train.count, " images, ", data.test.count, " to test, from ",
                       data_dir));
  const char* what = options.mode == ModeChoice::kDp ? " replica" : " rank";
  progress.line(place.session ? concat("train: ", communicator.size(), what,
                                       communicator.size() == 1 ? "" : "s", ", backend ",
                                       communicator.backend())
                              : "train: no launcher (WORLD_SIZE is not set): one rank alone");
  if (place.mesh) progress.line(concat("train: laid out as ", place.mesh->layout().text()));
  std::optional<Summary> summary = run_training(options, data, place, progress);
  if (!summary) return static_cast<int>(ExitCode::kRetryable);
  summary->data_dir = data_dir;
  summary->wall_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (const std::string waited = describe_loading(*summary, options.loader_threads);
      !waited.empty()) {
    progress.line(waited);
  }
  if (rank == 0 && !options.json_file.empty()) {
    write_text_file(options.json_file, to_json(*summary));
  }
  return static_cast<int>(ExitCode::kOk);
}

int train_as_worker(const Options& options, const DataSet& data, const std::string& data_dir,
                    const Worker& worker, MemorySnapshots& snapshots, Clock::time_point start) {
  std::optional<Mesh> mesh;
  if (!options.parallel.empty()) {
    mesh.emplace(*worker.communicator, MeshLayout::parse(options.parallel, layout_axes()));
  }
  // Keeping snapshots is collective, so it depends on what is the same on all ranks, not on this
  // rank's own agent.
  const bool keeps_snapshots =
      worker.session && worker.session->env().recovers_in_place && can_go_on_in_place(options);
  const Place place{.communicator = *worker.communicator,
                    .session = worker.session.get(),
                    .device = worker.env.device,
                    .snapshots = keeps_snapshots ? &snapshots : nullptr,
                    .recovered = worker.recovered,
                    .mesh = mesh ? &*mesh : nullptr};
  return train_as(options, data, data_dir, place, worker.env, start);
}

// Called when a rank has died: the others go on where they are, or are started again
// (docs/inplace.md).
Worker recover(Worker before, const Options& options) {
  Worker worker;
  worker.session = before.session->recover(std::move(before.communicator));
  worker.recovered = true;
  before.session.reset();
  meet(worker, options);
  return worker;
}

int num_replicas(const Options& options) {
  if (std::getenv(env::kWorldSize)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--mode=dp is for one process that no launcher has started (WORLD_SIZE is set): "
                "start train by itself, or leave --mode=dp away");
  }
  const int number = options.replicas > 0 ? options.replicas : num_visible_gpus();
  if (number > 0) return number;
  throw Error(ErrorCode::kInvalidArgument,
              "--mode=dp: no GPU is to be seen: give --replicas=N for replicas on the CPU");
}

// Runs each rank as a thread.
int run_replicas(const Options& options, const DataSet& data, const std::string& data_dir,
                 Clock::time_point start) {
  if (options.backend != BackendChoice::kHost) load_cuda();  // LibTorch looks for CUDA only once
  RankThreadOptions threads;
  threads.backend = options.backend;
  threads.communicator = {.timeout = options.operation_timeout,
                          .current_stream = current_torch_stream};
  threads.nccl_loader = load_cuda_and_nccl;
  const auto train_one = [&](Session& session, Communicator& communicator) {
    const WorkerEnv& env = session.env();
    train_as(options, data, data_dir,
             {.communicator = communicator, .session = &session, .device = env.device}, env, start);
  };
  run_rank_threads(num_replicas(options), train_one, threads);
  return static_cast<int>(ExitCode::kOk);
}

int run(const Options& options, Clock::time_point start) {
  const std::string data_dir = options.data_dir.empty() ? shipped_data_dir() : options.data_dir;
  const DataSet data = read_data_set(data_dir);
  Session::wait_for_place();  // under --prewarm: RANK and WORLD_SIZE are not set before it returns
  // Checked before the ranks meet: the others then wait for rank 0, instead of hearing that it is
  // lost.
  if (is_rank_zero() && !options.json_file.empty()) check_writable(options.json_file);
  if (options.mode == ModeChoice::kDp) return run_replicas(options, data, data_dir, start);
  MemorySnapshots snapshots(options.snapshot_every);
  Worker worker = join_job(options);
  for (;;) {
    try {
      return train_as_worker(options, data, data_dir, worker, snapshots, start);
    } catch (const Error& error) {
      const bool may = worker.session && worker.session->may_recover();
      if (error.code() != ErrorCode::kPeerLost || !may) throw;
    }
    worker = recover(std::move(worker), options);
  }
}

int run_program(int argc, char** argv) {
  const Clock::time_point start = Clock::now();
  int exit_status = 0;
  const std::optional<Options> options = parse_options(argc, argv, exit_status);
  if (!options) return exit_status;
  keep_freed_memory();
  ::signal(SIGXFSZ, SIG_IGN);  // exceeding a file size limit fails as a full disk does
  try {
    return run(*options, start);
  } catch (const Error& error) {
    return say(error.what(), exit_status_for(error.code()));
  } catch (const c10::Error& error) {
    return say(error);
  } catch (const std::bad_alloc&) {
    return say("out of memory", kSystemRefused);
  } catch (const std::exception& error) {
    return say(error.what(), kFailed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int exit_status = run_program(argc, argv);
  // Skips the destructors of LibTorch's static objects: they take 0.2 s, nearly as long as the
  // constructors.
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(exit_status);
}
