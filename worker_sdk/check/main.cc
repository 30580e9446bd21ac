// SPDX-License-Identifier: Apache-2.0
// ddprun-check BYTES SECONDS: a worker that sums BYTES of float32 over all ranks, again and again
// for some time, within SECONDS in all. It uses the host communicator, and NCCL if every rank has a
// GPU. Prints one line per backend on stdout: "BACKEND BYTES NANOSECONDS_OF_ONE", or "BACKEND
// failed: REASON". A backend that the job can't use gets no line. Exit status 0, or 3 after a
// failure.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/text.h"
#include "worker_sdk/core/session.h"

using namespace ddprun;

namespace {

constexpr int kNumWarmUps = 2, kNumMeasured = 8;
constexpr int kFailed = 3;

// Returns the mean time of one sum. Every rank calls it with the same size.
std::chrono::nanoseconds measure(Communicator& world, std::size_t num_bytes, const Device& device) {
  const auto memory = world.allocate(num_bytes);
  TensorView view{.data = memory->data(), .count = num_bytes / sizeof(float)};
  view.device = device;
  const bool is_host = device.kind == Device::Kind::kCpu;
  auto* numbers = static_cast<float*>(view.data);
  if (is_host) std::fill(numbers, numbers + view.count, 1.0F);
  world.all_reduce(view, ReduceOp::kSum);
  const auto wanted = static_cast<float>(world.size());
  const bool is_right = !is_host || std::all_of(numbers, numbers + view.count,
                                                [&](float each) { return each == wanted; });
  if (!is_right) throw Error(ErrorCode::kProtocol, "the sum is wrong");
  for (int i = 0; i < kNumWarmUps; ++i) world.all_reduce(view, ReduceOp::kAverage);
  world.barrier();
  const auto begun = Clock::now();
  for (int i = 0; i < kNumMeasured; ++i) world.all_reduce(view, ReduceOp::kAverage);
  world.barrier();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun) / kNumMeasured;
}

// Returns whether the backend worked. Every job can use "host"; NCCL runs only if every rank can
// use it.
bool try_backend(Session& session, BackendChoice choice, std::size_t num_bytes, Deadline deadline) {
  std::string name = choice == BackendChoice::kHost ? "host" : "nccl";
  try {
    CommunicatorOptions options;
    options.timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    options.init_timeout = options.timeout;
    options.blocking_wait = true;
    const auto world = session.make_communicator(choice, options);
    const bool is_host = world->backend() == "host";
    if (is_host && choice == BackendChoice::kAuto) return true;  // measured already
    const Device device = is_host ? Device{} : Device{Device::Kind::kCuda, session.env().device};
    const auto time = measure(*world, num_bytes, device);
    std::printf("%s %zu %lld\n", name.c_str(), num_bytes, static_cast<long long>(time.count()));
    std::fflush(stdout);
    return true;
  } catch (const Error& error) {
    std::printf("%s failed: %s\n", name.c_str(), one_line(error.what()).c_str());
    std::fflush(stdout);
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage, as a worker of ddprun: ddprun-check BYTES SECONDS\n", stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  const auto num_bytes = static_cast<std::size_t>(std::strtoull(argv[1], nullptr, 10));
  const auto seconds = std::chrono::duration<double>(std::strtod(argv[2], nullptr));
  const Deadline deadline = Deadline::after(seconds);
  try {
    const auto session = Session::from_env();
    const std::size_t whole = std::max(num_bytes, sizeof(float)) / sizeof(float) * sizeof(float);
    if (!try_backend(*session, BackendChoice::kHost, whole, deadline)) return kFailed;
    return try_backend(*session, BackendChoice::kAuto, whole, deadline) ? 0 : kFailed;
  } catch (const std::exception& error) {
    std::printf("host failed: %s\n", one_line(error.what()).c_str());
    return kFailed;
  }
}
