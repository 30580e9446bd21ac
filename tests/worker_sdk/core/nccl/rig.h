// SPDX-License-Identifier: Apache-2.0
// The ground of the nccl communicator's tests. Ranks are threads of this process, over the fake.
// With DDPRUN_TEST_REAL_NCCL they are over the machine's own CUDA and NCCL.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/elements.h"
#include "tests/support/errors.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/shared_store.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"

namespace ddprun::test {

// Names that all tests over the rig use.
using NcclCommunicator = Communicator;  // as make_nccl_communicator() gives it
using nccl::NcclOptions;
using nccl::Result;
using nccl::Stream;
using std::chrono::milliseconds;

class Rig {
 public:
  explicit Rig(int num_fake_devices = 8);
  // Fails the process if something was leaked or NCCL's rules were broken.
  ~Rig();

  // The reason why the tests can't run; nullptr: they can.
  const char* skip_reason(int num_ranks) const;
  int max_ranks() const { return max_ranks_; }

  NcclOptions options(int rank, int size) const;
  std::unique_ptr<NcclCommunicator> join(const NcclOptions& options);

  // Runs `body` once per rank, each in its own thread with its device selected. `body` gets options
  // whose current stream is the rank's own. Throws the first rank's exception when all ranks have
  // ended.
  void run(int size, const std::function<void(NcclOptions)>& body);
  void run_communicators(int size, const std::function<void(NcclCommunicator&, Stream)>& body);
  // Does the same with one communicator per rank and changed options.
  void run_with(int size, const std::function<void(NcclOptions&)>& change,
                const std::function<void(NcclCommunicator&, Stream)>& body);

  // Frees the memory when all ranks have ended. An earlier cudaFree would wait for all work of the
  // device. There another rank's kernel may wait for this rank's next one.
  void keep(int device, void* data);

  std::shared_ptr<nccl::CudaApi> cuda;
  std::shared_ptr<nccl::NcclApi> nccl;
  std::shared_ptr<FakeCuda> fake_cuda;  // nullptr on real hardware
  std::shared_ptr<FakeNccl> fake;       // nullptr on real hardware
  SharedStore store;

 private:
  void free_kept();

  std::mutex mutex_;
  std::vector<std::pair<int, void*>> kept_;  // Guarded by mutex_: device and memory
  int num_devices_ = 0;
  int max_ranks_ = 0;
  std::string why_not_;
};

// For Rig::run_with: an operation returns when its result is there.
inline void blocking(NcclOptions& options) { options.blocking_wait = true; }

#define SKIP_WITHOUT_RANKS(rig, num_ranks) \
  if ((rig).skip_reason(num_ranks) != nullptr) DDPRUN_SKIP((rig).skip_reason(num_ranks))

inline int device_of(const NcclCommunicator& communicator, Rig& rig) {
  return rig.options(communicator.rank(), communicator.size()).device;
}

// Device memory of one rank. The thread's device must be the rank's.
class DeviceArray {
 public:
  DeviceArray(Rig& rig, Stream stream, int device, DType dtype, std::size_t count);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  // Writes in the stream's order. Returns when the values are there.
  void write(const std::vector<double>& values);
  std::vector<double> read();

  TensorView view() const { return part(0, count_); }
  TensorView part(std::size_t first, std::size_t count) const;

 private:
  Rig& rig_;
  const Stream stream_;
  const int device_;
  const DType dtype_;
  const std::size_t count_;
  void* data_ = nullptr;
};

}  // namespace ddprun::test
