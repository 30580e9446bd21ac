// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/pipeline_link.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "common/check.h"

namespace ddprun::torch_adapter {
namespace {

at::Tensor empty_note() {
  return at::empty({static_cast<std::int64_t>(kNoteNumbers)}, at::TensorOptions().dtype(at::kLong));
}

}  // namespace

void SendLink::send(const at::Tensor& tensor) {
  while (!pending_.empty() && pending_.front().work->is_completed()) finish_front();
  const at::Tensor dense = tensor.contiguous();
  pending_.push_back({communicator_.send(message_view(dense), options_.peer,
                                         {.async = true, .timeout = options_.timeout}),
                      dense});
}

void SendLink::send(const Note& note) {
  const at::Tensor numbers = empty_note();
  std::memcpy(numbers.mutable_data_ptr(), note.data(), sizeof note);
  send(numbers.to(options_.device));
}

void SendLink::finish() {
  while (!pending_.empty()) finish_front();
}

void SendLink::forget() {
  for (Pending& each : pending_) each.work = nullptr;
}

// It stays where wait() throws: its memory may still be read.
void SendLink::finish_front() {
  pending_.front().work->wait();
  pending_.pop_front();
}

void ReceiveLink::expect(const TensorShape& shape) {
  expected_.push_back(shape);
  if (options_.ahead && !work_) post();
}

at::Tensor ReceiveLink::receive() {
  if (!work_) post();
  work_->wait();
  work_ = nullptr;
  at::Tensor received = std::exchange(posted_, {});
  if (options_.ahead && !expected_.empty()) post();
  return received;
}

Note ReceiveLink::receive_note() {
  DDPRUN_CHECK(!work_ && expected_.empty());
  posted_ = empty_note().to(options_.device);
  communicator_.recv(message_view(posted_), options_.peer, {.timeout = options_.timeout});
  const at::Tensor on_host = std::exchange(posted_, {}).cpu();
  Note note;
  std::memcpy(note.data(), on_host.const_data_ptr(), sizeof note);
  return note;
}

void ReceiveLink::post() {
  const TensorShape& shape = expected_.front();
  posted_ = at::empty(shape.sizes, at::TensorOptions().dtype(shape.dtype).device(options_.device));
  work_ = communicator_.recv(message_view(posted_), options_.peer,
                             {.async = true, .timeout = options_.timeout});
  expected_.pop_front();
}

}  // namespace ddprun::torch_adapter
