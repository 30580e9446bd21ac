// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/pipeline.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/parallel/pipeline_link.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

using Kind = PipelineOperation::Kind;

constexpr std::size_t kAgreementBytes = 64;

// Where the communicator wants buffers.
c10::Device device_of(const Communicator& communicator) {
  if (communicator.backend() != "nccl") return c10::kCPU;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
}

std::unique_ptr<Communicator> channel_of(Communicator& communicator, const std::string& name) {
  std::vector<int> all(static_cast<std::size_t>(communicator.size()));
  std::iota(all.begin(), all.end(), 0);
  return communicator.split(all, {.name = name});
}

void check(const PipelineOptions& options) {
  if (options.num_micro_batches < 1) {
    throw Error(ErrorCode::kInvalidArgument, concat("a pipeline of ", options.num_micro_batches,
                                                    " micro-batches can't be: at least 1"));
  }
}

}  // namespace

// Activations and gradients have a communicator each: on a device a message that waits for its peer
// holds up those behind it on the same one. They are this object's own, so that a step that ends
// with an error can end the other stages, and what is then still under way has an end.
class Pipeline::Impl {
 public:
  Impl(Stage stage, Communicator& communicator, const PipelineOptions& options)
      : stage_function_(std::move(stage)),
        options_(options),
        stage_(communicator.rank()),
        num_stages_(communicator.size()),
        device_(device_of(communicator)) {
    communicator.follow_stream(current_torch_stream);
    agree(communicator);
    if (num_stages_ == 1) return;
    const bool ahead = communicator.backend() == "host";
    activations_ = channel_of(communicator, "activations");
    gradients_ = channel_of(communicator, "gradients");
    const auto link = [&](int peer) {
      return LinkOptions{
          .peer = peer, .device = device_, .timeout = options.timeout, .ahead = ahead};
    };
    if (stage_ > 0) {
      activations_in_.emplace(*activations_, link(stage_ - 1));
      gradients_out_.emplace(*gradients_, link(stage_ - 1));
    }
    if (!is_last()) {
      activations_out_.emplace(*activations_, link(stage_ + 1));
      gradients_in_.emplace(*gradients_, link(stage_ + 1));
    }
  }

  // The communicators go first: nothing touches the links' memory then.
  ~Impl() {
    if (activations_in_) activations_in_->forget(), gradients_out_->forget();
    if (activations_out_) activations_out_->forget(), gradients_in_->forget();
  }

  int stage() const { return stage_; }
  int num_stages() const { return num_stages_; }

  at::Tensor train_step(const at::Tensor& input, const Loss& loss) {
    if (is_last() && !loss) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("stage ", stage_,
                         " is the last one: train_step() needs a loss there; "
                         "nothing has begun"));
    }
    check_input(input);
    return guarded([&] {
      begin_step(true, input);
      const int num_parts = static_cast<int>(parts_.size());
      for (const PipelineOperation& each :
           pipeline_schedule(options_.kind, stage_, num_stages_, num_parts)) {
        run(each, input, &loss);
      }
      finish_sends();
      return loss_of_step();
    });
  }

  at::Tensor evaluate(const at::Tensor& input) {
    check_input(input);
    const c10::NoGradGuard no_grad;
    return guarded([&] {
      begin_step(false, input);
      for (const PipelineOperation& each :
           forward_schedule(stage_, num_stages_, static_cast<int>(parts_.size()))) {
        run(each, input, nullptr);
      }
      finish_sends();
      std::vector<at::Tensor> outputs;
      for (Live& each : std::exchange(live_, {})) outputs.push_back(std::move(each.output));
      return is_last() ? at::cat(outputs) : at::Tensor();
    });
  }

 private:
  // A micro-batch between its forward and its backward.
  struct Live {
    at::Tensor input;   // as it was received
    at::Tensor output;  // last stage, training: its part of the loss
  };

  // Shapes of a step's messages, by micro-batch, of a kind of step: as they were sent last.
  struct Shapes {
    std::optional<TensorShape> batch;  // first stage
    std::vector<TensorShape> in, out;
  };

  bool is_last() const { return stage_ == num_stages_ - 1; }

  // Every stage has the same options, or all throw.
  void agree(Communicator& communicator) {
    const std::string mine =
        concat(to_string(options_.kind), " with ", options_.num_micro_batches,
               " micro-batches, broadcast_loss ", options_.broadcast_loss ? "on" : "off");
    const std::vector<std::string> all = gather_texts(mine, kAgreementBytes, communicator, device_);
    for (std::size_t other = 1; other < all.size(); ++other) {
      if (all[other] == all[0]) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  concat("the stages of a pipeline have the same options: stage 0 has ", all[0],
                         ", stage ", other, " ", all[other]));
    }
    check(options_);
  }

  void check_input(const at::Tensor& input) const {
    if (stage_ > 0) return;
    const auto refuse = [](const std::string& what) {
      throw Error(ErrorCode::kInvalidArgument,
                  "stage 0 of a pipeline needs a batch: " + what + "; nothing has begun");
    };
    if (!input.defined()) refuse("its input is an undefined tensor");
    if (input.dim() == 0 || input.size(0) == 0) {
      refuse(concat("its input has no samples, its sizes are ", input.sizes()));
    }
  }

  // Runs a step. Where it throws the other stages end, too, and no later one begins: the links
  // still hold what was under way.
  template <typename Step>
  at::Tensor guarded(Step step) {
    if (!failed_.empty()) {
      throw Error(ErrorCode::kAborted, "an earlier step of this pipeline has failed: " + failed_);
    }
    try {
      return step();
    } catch (const std::exception& error) {
      live_.clear();
      if (activations_) {
        failed_ = concat("stage ", stage_, ": ", error.what());
        activations_->abort(failed_);
        gradients_->abort(failed_);
      }
      throw;
    }
  }

  void begin_step(bool trains, const at::Tensor& input) {
    StepNote note{.trains = trains};
    Shapes& shapes = shapes_[trains];
    if (stage_ == 0) {
      note.num_samples = input.size(0);
      note.has_shapes = shapes.batch != shape_of(input);
      shapes.batch = shape_of(input);
    } else {
      note = StepNote::decode(activations_in_->receive_note());
      if (note.trains != trains) {
        const auto name = [](bool training) { return training ? "train_step()" : "evaluate()"; };
        throw Error(ErrorCode::kInvalidArgument,
                    concat("stage ", stage_ - 1, " called ", name(note.trains), ", stage ", stage_,
                           " ", name(trains), ": every stage calls the same"));
      }
    }
    if (activations_out_) activations_out_->send(note.encode());
    parts_ = split_batch(note.num_samples, options_.num_micro_batches);
    live_.assign(parts_.size(), {});
    loss_.reset();
    sends_shapes_ = note.has_shapes;
    current_ = &shapes;
    if (note.has_shapes) {
      shapes.in.clear();
      shapes.out.clear();
      return;
    }
    for (const TensorShape& shape : shapes.in) activations_in_->expect(shape);
  }

  void run(const PipelineOperation& operation, const at::Tensor& input, const Loss* loss) {
    const auto index = static_cast<std::size_t>(operation.micro_batch);
    const MicroBatch& part = parts_[index];
    Live& live = live_[index];
    switch (operation.kind) {
      case Kind::kReceiveActivation:
        live.input = receive_activation();
        break;
      case Kind::kForward:
        forward(live, stage_ == 0 ? input.narrow(0, part.first, part.count) : live.input, part,
                loss);
        break;
      case Kind::kSendActivation:
        send_activation(live, index, loss != nullptr);
        break;
      case Kind::kReceiveGradient:
        gradient_ = gradients_in_->receive();
        break;
      case Kind::kBackward:
        backward(live);
        break;
      case Kind::kSendGradient:
        gradients_out_->send(std::exchange(gradient_, {}));
        break;
    }
  }

  at::Tensor receive_activation() {
    if (sends_shapes_) {
      const TensorShape shape = TensorShape::decode(activations_in_->receive_note());
      current_->in.push_back(shape);
      activations_in_->expect(shape);
    }
    return activations_in_->receive();
  }

  void forward(Live& live, const at::Tensor& input, const MicroBatch& part, const Loss* loss) {
    if (stage_ > 0 && loss) live.input.requires_grad_(true);
    live.output = stage_function_(input);
    if (!loss) live.input.reset();
    if (!is_last()) return check_can_travel(live.output, output_text(part.index));
    if (!loss) return;
    const at::Tensor value = (*loss)(live.output, part);
    if (!value.defined() || value.numel() != 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("the loss of micro-batch ", part.index, " is ",
                         value.defined() ? shape_of(value).text() : "undefined",
                         ": it must be one number, the mean over the micro-batch"));
    }
    live.output = value.sum() * part.weight;
    const at::Tensor share = live.output.detach();
    loss_ = loss_.defined() ? loss_ + share : share;
  }

  void send_activation(Live& live, std::size_t index, bool trains) {
    const TensorShape shape = shape_of(live.output);
    if (sends_shapes_) {
      current_->out.push_back(shape);
      activations_out_->send(shape.encode());
    } else if (current_->out[index] != shape) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat(output_text(static_cast<int>(index)), " is ", shape.text(), ", it was ",
                         current_->out[index].text(),
                         " in the step before: for inputs of the same "
                         "shape a stage's outputs have the same shape, too"));
    }
    activations_out_->send(live.output.detach());
    if (trains) {
      gradients_in_->expect(shape);
    } else {
      live.output.reset();
    }
  }

  // Before: `gradient_` is the output's. After: the input's.
  void backward(Live& live) {
    const at::Tensor gradient = std::exchange(gradient_, {});
    if (live.output.requires_grad()) live.output.backward(gradient);
    live.output.reset();
    if (stage_ == 0) return;
    gradient_ = live.input.grad();  // undefined: nothing depends on it
    if (!gradient_.defined()) gradient_ = at::zeros_like(live.input);
    live.input.reset();
  }

  void finish_sends() {
    if (activations_out_) activations_out_->finish();
    if (gradients_out_) gradients_out_->finish();
  }

  at::Tensor loss_of_step() {
    live_.clear();
    at::Tensor loss = std::exchange(loss_, {});
    if (!options_.broadcast_loss) return loss;
    const auto as_sent = at::TensorOptions().dtype(at::kDouble).device(device_);
    loss = is_last() ? loss.to(as_sent) : at::empty({}, as_sent);
    if (activations_) {
      activations_->broadcast(message_view(loss), num_stages_ - 1, {.timeout = options_.timeout});
    }
    return loss;
  }

  std::string output_text(int index) const {
    return concat("stage ", stage_, "'s output of micro-batch ", index);
  }

  // Constant after construction.
  const Stage stage_function_;
  const PipelineOptions options_;
  const int stage_, num_stages_;
  const c10::Device device_;

  Shapes shapes_[2];    // evaluate(), train_step()
  std::string failed_;  // why a step ended the channels; empty: none did

  // The step that is under way.
  std::vector<MicroBatch> parts_;
  std::vector<Live> live_;
  Shapes* current_ = nullptr;
  bool sends_shapes_ = true;
  at::Tensor gradient_, loss_;

  std::optional<ReceiveLink> activations_in_, gradients_in_;
  std::optional<SendLink> activations_out_, gradients_out_;
  std::unique_ptr<Communicator> activations_, gradients_;  // after the links: they go before them
};

Pipeline::Pipeline(Stage stage, Communicator& communicator, const PipelineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(stage), communicator, options)) {}

Pipeline::~Pipeline() = default;

int Pipeline::stage() const { return impl_->stage(); }
int Pipeline::num_stages() const { return impl_->num_stages(); }

at::Tensor Pipeline::train_step(const at::Tensor& input, const Loss& loss) {
  return impl_->train_step(input, loss);
}

at::Tensor Pipeline::evaluate(const at::Tensor& input) { return impl_->evaluate(input); }

}  // namespace ddprun
