// SPDX-License-Identifier: Apache-2.0
// A worker whose "training" has one right result, for jobs that go on in place (docs/inplace.md).
//
//   in_place_worker DIRECTORY NUM_SAMPLES STEP_US [mute|nccl]
//
// The samples 0 … NUM_SAMPLES − 1 are taken once, in this order. Each rank takes kBatch of them in
// each step, so a step of W ranks takes the next W · kBatch. The weight after a step is a function
// of the weight before and of the step's samples, in whole numbers. Every kSnapshotSteps steps each
// rank keeps a snapshot in memory, the last two of them, and rank 0 writes it to DIRECTORY. Ranks
// that lose a peer recover, and go on from the newest snapshot that all of them have. Processes
// that are started again go on from the written snapshot.
//
// mute: offers no recovery. nccl: the communicators are NCCL's, over the fake of
// shared_file_nccl.h. DIRECTORY:
//   pids/R.N     the process of rank R in round N, once its communicator is there
//   history      a line of rank 0 for each time that the ranks begin, or go on:
//                "ROUND POSITION WORLD_SIZE recovered|started"
//   snapshot     "STEP POSITION WEIGHT"
//   result       "WEIGHT", at the end
#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "tests/faults/shared_file_nccl.h"
#include "tests/support/fake_cuda.h"
#include "worker_sdk/core/session.h"

namespace {

using namespace ddprun;

constexpr std::int64_t kPrime = 1'000'003;
constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kSnapshotSteps = 5;
constexpr std::chrono::milliseconds kLimit{30'000};

struct State {
  std::int64_t step = 0, position = 0, weight = 1;
};

struct Job {
  std::string directory;
  std::int64_t num_samples = 0;
  std::chrono::microseconds step_time{0};
  std::string mode;  // empty, or the last argument
};

// Writes the file whole or not at all.
void write_file(const std::string& path, const std::string& text) {
  const std::string part = concat(path, ".", ::getpid());
  std::ofstream(part) << text;
  if (::rename(part.c_str(), path.c_str()) != 0) throw_system_error(path, errno);
}

void append(const std::string& path, const std::string& line) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file || ::write(file.get(), line.data(), line.size()) < 0) throw_system_error(path, errno);
}

class Trainer {
 public:
  explicit Trainer(Job job) : job_(std::move(job)), session_(Session::from_env(options())) {
    if (job_.mode != "mute") session_->offer_recovery();
  }

  void run() {
    bool recovered = false;
    for (;;) {
      try {
        begin(recovered);
        train();
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kPeerLost || !session_->may_recover()) throw;
      }
      number_.reset();
      session_ = session_->recover(std::move(world_));
      recovered = true;
    }
  }

 private:
  SessionOptions options() const {
    const auto load = [directory = job_.directory]() -> NcclLibraries {
      const auto cuda = std::make_shared<test::FakeCuda>(8);
      return {cuda, std::make_shared<test::SharedFileNccl>(cuda, directory)};
    };
    return {.connect_timeout = kLimit, .store_timeout = kLimit, .nccl_loader = load};
  }

  std::int64_t all_reduced(std::int64_t value, ReduceOp op) {
    auto* place = static_cast<std::int64_t*>(number_->data());
    *place = value;
    TensorView view{.data = place, .count = 1, .dtype = DType::kInt64};
    if (job_.mode == "nccl") view.device = {Device::Kind::kCuda, session_->env().device};
    world_->all_reduce(view, op);
    return *place;
  }

  void begin(bool recovered) {
    world_ = session_->make_communicator(
        job_.mode == "nccl" ? BackendChoice::kNccl : BackendChoice::kHost,
        {.timeout = kLimit, .init_timeout = kLimit, .blocking_wait = true});
    number_ = world_->allocate(sizeof(std::int64_t));
    if (!recovered) {
      std::ifstream file(job_.directory + "/snapshot");
      State state;
      if (file >> state.step >> state.position >> state.weight) snapshots_ = {state};
    }
    // Ranks are at most one step apart. So each rank has the oldest of the newest snapshots among
    // its two.
    const std::int64_t step = all_reduced(snapshots_.back().step, ReduceOp::kMin);
    while (snapshots_.back().step > step) snapshots_.pop_back();
    state_ = snapshots_.back();
    if (state_.step != step) throw Error(ErrorCode::kProtocol, "no common snapshot");
    write_file(concat(job_.directory, "/pids/", world_->rank(), ".", session_->env().round),
               std::to_string(::getpid()));
    if (world_->rank() != 0) return;
    append(job_.directory + "/history",
           concat(session_->env().round, " ", state_.position, " ", world_->size(),
                  recovered ? " recovered\n" : " started\n"));
  }

  void train() {
    while (state_.position < job_.num_samples) {
      session_->should_stop(static_cast<std::uint64_t>(state_.step) + 1);
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < kBatch; ++i) {
        const std::int64_t sample = state_.position + world_->rank() * kBatch + i;
        if (sample < job_.num_samples) sum += (sample * 48'271 + state_.weight) % kPrime;
      }
      std::this_thread::sleep_for(job_.step_time);
      sum = all_reduced(sum, ReduceOp::kSum);
      state_.weight = (state_.weight * 31 + sum) % kPrime;
      state_.position += world_->size() * kBatch;
      if (++state_.step % kSnapshotSteps == 0) keep();
    }
    world_->barrier();
    if (world_->rank() == 0) {
      write_file(job_.directory + "/result", std::to_string(state_.weight));
    }
  }

  void keep() {
    if (snapshots_.size() == 2) snapshots_.erase(snapshots_.begin());
    snapshots_.push_back(state_);
    if (world_->rank() != 0) return;
    write_file(job_.directory + "/snapshot",
               concat(state_.step, " ", state_.position, " ", state_.weight));
  }

  const Job job_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<CommBuffer> number_;  // the number that all ranks reduce
  State state_;
  std::vector<State> snapshots_{State{}};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  try {
    Trainer({argv[1], std::atoll(argv[2]), std::chrono::microseconds(std::atoll(argv[3])),
             argc == 5 ? argv[4] : ""})
        .run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
