// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"
#include "worker_sdk/core/checkpoint/writer_thread.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {
namespace {

// As safetensors has it.
std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      throw Error(ErrorCode::kUnsupported,
                  concat("a checkpoint can't hold tensors of dtype ", c10::toString(dtype)));
  }
}

// `tensor` as a file describes it; without its bytes.
TensorBytes outline(const NamedTensor& each) {
  return {.name = each.name,
          .dtype = dtype_name(each.tensor.scalar_type()),
          .shape = each.tensor.sizes().vec(),
          .bytes = {}};
}

std::string describe(const TensorBytes& tensor) {
  return concat(tensor.dtype, " ", at::IntArrayRef(tensor.shape));
}

using ByName = std::map<std::string_view, const TensorBytes*>;

ByName by_name(const std::vector<TensorBytes>& tensors) {
  ByName found;
  for (const TensorBytes& each : tensors) found[each.name] = &each;
  return found;
}

// Which tensor isn't the same there as here, and how; empty: all are alike.
std::string first_difference(ByName there, const std::vector<NamedTensor>& here) {
  for (const NamedTensor& each : here) {
    const TensorBytes mine = outline(each);
    const auto found = there.find(mine.name);
    if (found == there.end()) return concat("it has no ", mine.name);
    const TensorBytes& saved = *found->second;
    if (saved.dtype != mine.dtype || saved.shape != mine.shape) {
      return concat(mine.name, " is ", describe(saved), " there, ", describe(mine), " here");
    }
    there.erase(found);
  }
  return there.empty() ? "" : concat(there.begin()->first, " is none of this model's");
}

void copy_from(const TensorBytes& saved, const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  const at::Tensor on_host = at::empty(saved.shape, options);
  // Not over the file's bytes: they need not be aligned.
  std::memcpy(on_host.mutable_data_ptr(), saved.bytes.data(), saved.bytes.size());
  tensor.copy_(on_host);
}

// What rank 0 came to, for the others.
constexpr char kResult = 'R', kError = 'E';

std::string encode(ErrorCode code, const std::string& what) {
  return concat(kError, static_cast<char>(code), what);
}

}  // namespace

Checkpoint::Checkpoint(const CheckpointOptions& options, Communicator& communicator,
                       c10::Device device)
    : communicator_(communicator),
      device_(device),
      async_(options.async),
      writer_(std::make_unique<WriterThread>()) {
  on_rank_zero([&] {
    directory_ = std::make_unique<CheckpointDirectory>(options.directory, options.num_kept);
    return std::string();
  });
}

Checkpoint::~Checkpoint() = default;

// `act` is done on rank 0 alone; every rank returns what it returned, or throws what it threw.
template <typename Act>
std::string Checkpoint::on_rank_zero(Act act) {
  std::string outcome;
  if (communicator_.rank() == 0) {
    try {
      outcome = kResult + act();
    } catch (const Error& error) {
      outcome = encode(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      outcome = encode(ErrorCode::kResourceExhausted, "out of memory for a checkpoint");
    } catch (const std::exception& error) {  // the file system's
      outcome = encode(ErrorCode::kSystem, concat("a checkpoint: ", error.what()));
    }
  }
  if (communicator_.size() > 1) {
    torch_adapter::broadcast_bytes(outcome, 0, communicator_, device_);
  }
  if (outcome.front() == kResult) return outcome.substr(1);
  throw Error(static_cast<ErrorCode>(outcome.at(1)), outcome.substr(2));
}

// On rank 0. What the other ranks must know of it: the step, a line break, the metadata as a file's
// header. Empty: there is none.
std::string Checkpoint::read_newest(const std::vector<NamedTensor>& tensors, const Accept& accept) {
  const std::unique_ptr<LoadedCheckpoint> loaded = directory_->newest();
  if (!loaded) return "";
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("can't go on from ", loaded->path, ": ", why,
                       "; give what it was trained with, or another checkpoint directory"));
  };
  const ByName saved = by_name(loaded->content.tensors);
  const std::string difference = first_difference(saved, tensors);
  if (!difference.empty()) refuse("it is of another model: " + difference);
  std::string why;
  try {
    if (accept) why = accept(loaded->step, loaded->content.metadata);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kProtocol) throw;
    why = error.what();
  }
  if (!why.empty()) refuse(why);
  for (const NamedTensor& each : tensors) copy_from(*saved.at(each.name), each.tensor);
  path_ = loaded->path;
  return concat(loaded->step, '\n', encode_header(loaded->content.metadata, {}));
}

std::optional<SavedState> Checkpoint::load(const std::vector<NamedTensor>& tensors,
                                           const Accept& accept) {
  finish();
  const std::string text = on_rank_zero([&] { return read_newest(tensors, accept); });
  if (text.empty()) return std::nullopt;
  const std::size_t end = text.find('\n');
  SavedState state{.step = std::stoull(text.substr(0, end)),
                   .metadata = decode_safetensors(std::string_view(text).substr(end + 1)).metadata};
  std::vector<at::Tensor> all;
  for (const NamedTensor& each : tensors) all.push_back(each.tensor);
  torch_adapter::broadcast_tensors(all, 0, communicator_);
  last_step_ = state.step;
  return state;
}

// Views of copies_, which hold what `tensors` are now.
std::vector<TensorBytes> Checkpoint::snapshot(const std::vector<NamedTensor>& tensors) {
  const c10::NoGradGuard no_grad;
  std::vector<TensorBytes> views;
  copies_.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor source = tensors[i].tensor.detach();
    at::Tensor& copy = copies_[i];
    if (!copy.defined() || copy.sizes() != source.sizes() || copy.dtype() != source.dtype()) {
      copy = at::empty(
          source.sizes(),
          at::TensorOptions().dtype(source.scalar_type()).pinned_memory(source.is_cuda()));
    }
    copy.copy_(source);
    views.push_back(outline(tensors[i]));
    views.back().bytes = {static_cast<const char*>(copy.const_data_ptr()), copy.nbytes()};
  }
  return views;
}

void Checkpoint::save(std::uint64_t step, const Metadata& metadata,
                      const std::vector<NamedTensor>& tensors) {
  if (last_step_ == step) return;
  last_step_.reset();  // after an error it can be saved again
  on_rank_zero([&] {
    writer_->wait();
    const auto write = [this, step, metadata, views = snapshot(tensors)] {
      directory_->write(step, metadata, views);
    };
    if (async_) {
      writer_->start(write);
    } else {
      write();
    }
    path_ = directory_->path_of(step);
    return std::string();
  });
  last_step_ = step;
}

void Checkpoint::finish() {
  const auto step = std::exchange(last_step_, std::nullopt);
  on_rank_zero([&] {
    writer_->wait();
    return std::string();
  });
  last_step_ = step;
}

}  // namespace ddprun
