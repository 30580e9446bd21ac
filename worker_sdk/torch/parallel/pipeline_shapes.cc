// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/pipeline_shapes.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {
namespace {

// First number of a note: which it is.
constexpr std::int64_t kStepMark = 0x70697065'73746570, kShapeMark = 0x70697065'73686170;
constexpr std::size_t kSizesFrom = 3, kMaxDimensions = kNoteNumbers - kSizesFrom;

constexpr at::ScalarType kTravels[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

void check_mark(const Note& note, std::int64_t mark, const char* what) {
  if (note[0] == mark) return;
  throw Error(ErrorCode::kProtocol, concat("expected ", what,
                                           " from the stage before, something "
                                           "else came: the stages are out of step"));
}

}  // namespace

Note StepNote::encode() const { return {kStepMark, trains, has_shapes, num_samples}; }

StepNote StepNote::decode(const Note& note) {
  check_mark(note, kStepMark, "the beginning of a step");
  return {.trains = note[1] != 0, .has_shapes = note[2] != 0, .num_samples = note[3]};
}

Note TensorShape::encode() const {
  Note note{kShapeMark, static_cast<std::int64_t>(dtype), static_cast<std::int64_t>(sizes.size())};
  std::copy(sizes.begin(), sizes.end(), note.begin() + kSizesFrom);
  return note;
}

TensorShape TensorShape::decode(const Note& note) {
  check_mark(note, kShapeMark, "a tensor's shape");
  const auto num_sizes = static_cast<std::size_t>(
      std::clamp<std::int64_t>(note[2], 0, static_cast<std::int64_t>(kMaxDimensions)));
  const auto* first = note.begin() + kSizesFrom;
  return {.dtype = static_cast<at::ScalarType>(note[1]), .sizes = {first, first + num_sizes}};
}

std::string TensorShape::text() const {
  return concat(c10::toString(dtype), " ", at::IntArrayRef(sizes));
}

TensorShape shape_of(const at::Tensor& tensor) {
  return {.dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
}

void check_can_travel(const at::Tensor& tensor, const std::string& whose) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, concat(whose, " ", why));
  };
  if (!tensor.defined()) refuse("is an undefined tensor");
  if (tensor.layout() != at::kStrided) refuse("is not a dense tensor: it can't be sent");
  if (std::find(std::begin(kTravels), std::end(kTravels), tensor.scalar_type()) ==
      std::end(kTravels)) {
    refuse(concat("is ", c10::toString(tensor.scalar_type()),
                  ": float32, float64, float16 or bfloat16 can be sent"));
  }
  if (static_cast<std::size_t>(tensor.dim()) > kMaxDimensions) {
    refuse(concat("has ", tensor.dim(), " dimensions, the most is ", kMaxDimensions));
  }
}

TensorView message_view(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kLong) return view_of(tensor, "a stage's output");
  return {.data = tensor.mutable_data_ptr(),  // a note's numbers, which nobody adds
          .count = static_cast<std::size_t>(tensor.numel()),
          .dtype = DType::kInt64,
          .device = comm_device_of(tensor)};
}

}  // namespace ddprun::torch_adapter
