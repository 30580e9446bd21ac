// SPDX-License-Identifier: Apache-2.0
// One direction between two neighbouring stages of a pipeline: tensors in order, moved while the
// stage computes. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <optional>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/parallel/pipeline_shapes.h"

namespace ddprun::torch_adapter {

struct LinkOptions {
  int peer = 0;
  c10::Device device{c10::kCPU};
  std::optional<std::chrono::milliseconds> timeout{};
  // Receives are posted before they are asked for. Only where a receive that waits holds up nothing
  // else on this rank: each (peer, direction) has a queue of its own ("host").
  bool ahead = true;
};

// One thread. The communicator outlives it; after an error it keeps what is being sent or received
// until the communicator has gone.
class SendLink {
 public:
  SendLink(Communicator& communicator, const LinkOptions& options)
      : communicator_(communicator), options_(options) {}

  // Returns at once, keeps the tensor's memory while it is under way. Throws the communicator's
  // errors, also those of what was sent before.
  void send(const at::Tensor& tensor);
  void send(const Note& note);

  // Waits for all that was sent.
  void finish();

  // No operation is asked for again; their memory is kept.
  void forget();

 private:
  struct Pending {
    WorkPtr work;
    at::Tensor tensor;
  };
  void finish_front();

  Communicator& communicator_;
  const LinkOptions options_;
  std::deque<Pending> pending_;
};

class ReceiveLink {
 public:
  ReceiveLink(Communicator& communicator, const LinkOptions& options)
      : communicator_(communicator), options_(options) {}

  // A tensor like this comes after those that are expected already.
  void expect(const TensorShape& shape);

  // The first that is expected. Throws the communicator's errors.
  at::Tensor receive();

  // A note. No tensor is expected meanwhile.
  Note receive_note();

  void forget() { work_ = nullptr; }

 private:
  void post();

  Communicator& communicator_;
  const LinkOptions options_;
  std::deque<TensorShape> expected_;  // and not posted
  WorkPtr work_;                      // of the one that is posted
  at::Tensor posted_;
};

}  // namespace ddprun::torch_adapter
