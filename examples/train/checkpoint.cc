// SPDX-License-Identifier: Apache-2.0
#include "examples/train/checkpoint.h"

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
#include "examples/train/checkpoint_directory.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
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

Checkpoint::Checkpoint(const std::string& directory, Communicator& communicator, c10::Device device)
    : communicator_(communicator), device_(device) {
  on_rank_zero([&] {
    directory_ = std::make_unique<CheckpointDirectory>(directory);
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
      outcome = encode(ErrorCode::kSystem, concat("--checkpoint-dir: ", error.what()));
    }
  }
  if (communicator_.size() > 1) {
    torch_adapter::broadcast_bytes(outcome, 0, communicator_, device_);
  }
  if (outcome.front() == kResult) return outcome.substr(1);
  throw Error(static_cast<ErrorCode>(outcome.at(1)), outcome.substr(2));
}

// On rank 0. The metadata of what was read; empty: there is none.
std::string Checkpoint::read_newest(const RunIdentity& run,
                                    const std::vector<NamedTensor>& tensors) {
  const std::unique_ptr<LoadedCheckpoint> loaded = directory_->newest();
  if (!loaded) return "";
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("can't go on from ", loaded->path, ": ", why,
                       "; give what it was trained with, or another --checkpoint-dir"));
  };
  const ByName saved = by_name(loaded->content.tensors);
  std::string difference = first_difference(saved, tensors);
  if (!difference.empty()) refuse("it is of another model: " + difference);
  try {
    const TrainingState state = from_metadata(loaded->content.metadata);
    if (state.step != loaded->step) refuse(concat("it is of step ", state.step));
    difference = train::first_difference(state.run, run);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kProtocol) throw;
    refuse(error.what());
  }
  if (!difference.empty()) refuse(difference);
  for (const NamedTensor& each : tensors) copy_from(*saved.at(each.name), each.tensor);
  path_ = loaded->path;
  return encode_header(loaded->content.metadata, {});
}

std::optional<TrainingState> Checkpoint::load(const RunIdentity& run,
                                              const std::vector<NamedTensor>& tensors) {
  const std::string text = on_rank_zero([&] { return read_newest(run, tensors); });
  if (text.empty()) return std::nullopt;
  const TrainingState state = from_metadata(decode_state_file(text).metadata);
  std::vector<at::Tensor> all;
  for (const NamedTensor& each : tensors) all.push_back(each.tensor);
  torch_adapter::broadcast_tensors(all, 0, communicator_);
  last_step_ = state.step;
  return state;
}

void Checkpoint::save(const TrainingState& state, const std::vector<NamedTensor>& tensors) {
  if (last_step_ == state.step) return;
  on_rank_zero([&] {
    std::vector<at::Tensor> owners;  // of the bytes below
    std::vector<TensorBytes> views;
    for (const NamedTensor& each : tensors) {
      owners.push_back(each.tensor.detach().cpu().contiguous());
      views.push_back(outline(each));
      views.back().bytes = {static_cast<const char*>(owners.back().const_data_ptr()),
                            owners.back().nbytes()};
    }
    path_ = directory_->write(state.step, to_metadata(state), views);
    return std::string();
  });
  last_step_ = state.step;
}

}  // namespace ddprun::train
