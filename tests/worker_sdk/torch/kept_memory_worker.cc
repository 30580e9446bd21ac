// SPDX-License-Identifier: Apache-2.0
// After a failure NCCL may write to the tensors of its operations until it has been aborted. These
// stay until then. Exit status 0: all checks hold.
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <latch>
#include <memory>
#include <thread>

#include "common/clock.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_nccl.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/core/rank_threads.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/tensor_collectives.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace kept_memory_worker {
namespace {

// Above 32 MiB memory of the C library is a mapping of its own, which goes when it is freed.
constexpr std::int64_t kCount = 10 << 20;

bool is_mapped(const void* memory) {
  const auto page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto page = reinterpret_cast<std::uintptr_t>(memory) / page_size * page_size;
  return ::msync(reinterpret_cast<void*>(page), page_size, MS_ASYNC) == 0;
}

// Shows host memory as the fake's GPU memory, and notes what an operation writes.
class OnGpu final : public ForwardingCommunicator {
 public:
  explicit OnGpu(std::unique_ptr<Communicator> real)
      : ForwardingCommunicator(*real), real_(std::move(real)) {}

  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    CollectiveCall its = call;
    its.input = on_gpu(call.input);
    its.output = written(call.output);
    return ForwardingCommunicator::run(its, options);
  }

  const void* last_written = nullptr;

 private:
  TensorView on_gpu(TensorView view) const {
    view.device = {Device::Kind::kCuda, rank()};
    return view;
  }
  TensorView written(const TensorView& view) {
    last_written = view.data;
    return on_gpu(view);
  }

  const std::unique_ptr<Communicator> real_;
};

using Use = std::function<void(Communicator&)>;

void average(Communicator& communicator) {
  torch::Tensor parameter = torch::zeros({kCount}).requires_grad_(true);
  parameter.mutable_grad() = torch::ones({kCount});
  average_gradients({parameter}, communicator);
}
void reduce(Communicator& communicator) {
  torch_adapter::all_reduced(torch::ones({kCount}), communicator);
}
void gather_later(Communicator& communicator) {
  torch_adapter::start_gather(torch::ones({kCount}), communicator).wait();
}
void gather_and_forget(Communicator& communicator) {
  torch_adapter::start_gather(torch::ones({kCount}), communicator);
  throw Error(ErrorCode::kPeerLost, "the test's own");
}

// Rank 1 never comes, and NCCL says so while `use` waits. The abort begins only when the tensors
// have been looked for.
void check(const Use& use) {
  const auto cuda = std::make_shared<test::FakeCuda>(2);
  const auto fake = std::make_shared<test::FakeNccl>(cuda);
  std::latch has_looked(1);
  const auto rank_0 = [&](Session& session) {
    auto communicator = std::make_unique<OnGpu>(
        session.make_communicator(BackendChoice::kNccl, {.blocking_wait = true}));
    fake->hang_aborts();
    ErrorCode code{};
    try {
      use(*communicator);
    } catch (const Error& error) {
      code = error.code();
    }
    expect(code == ErrorCode::kPeerLost, "the other rank is lost");
    const void* const written = communicator->last_written;
    expect(fake->num_running(0) > 0, "the operation is on the device");
    expect(is_mapped(written), "what it writes is there");
    fake->release_aborts();
    communicator.reset();
    expect(fake->num_running(0) == 0, "nothing is on the device");
    expect(!is_mapped(written), "nothing keeps the memory any more");
  };
  const auto rank_1 = [&](Session& session) {
    const auto communicator = session.make_communicator(BackendChoice::kNccl);
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (fake->num_running(0) == 0) {
      expect(Clock::now() < deadline, "rank 0 begins its operation");
      std::this_thread::yield();
    }
    fake->inject_async_error(0, nccl::Result::kRemoteError);
    has_looked.wait();
  };
  const auto body = [&](Session& session, Communicator&) {
    if (session.rank() == 1) return rank_1(session);
    const std::unique_ptr<std::latch, void (*)(std::latch*)> at_end(
        &has_looked, [](std::latch* latch) { latch->count_down(); });
    rank_0(session);
  };
  run_rank_threads(2, body, {.backend = BackendChoice::kHost, .nccl_loader = [&] {
                               return NcclLibraries{cuda, fake};
                             }});
  expect(fake->num_violations() == 0, "NCCL's rules are kept");
}

}  // namespace

int program(int /*argc*/, char** /*argv*/) {
  torch::set_num_threads(1);
  try {
    for (auto* const use : {average, reduce, gather_later, gather_and_forget}) check(use);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kept_memory_worker: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace kept_memory_worker
