// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/pipeline.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/rank_group.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/kept_on_error.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

using Kind = PipelineOperation::Kind;

constexpr std::size_t kAgreementBytes = 64;

// A message between stages besides the tensors: a step's beginning, or the dtype and shape of a
// tensor that follows. All have one size, of kInt64.
constexpr std::size_t kNoteNumbers = 16;  // 128 bytes
using Note = std::array<std::int64_t, kNoteNumbers>;

// First number of a note: its kind.
constexpr std::int64_t kStepMark = 0x70697065'73746570, kShapeMark = 0x70697065'73686170;
constexpr std::size_t kSizesFrom = 3, kMaxDimensions = kNoteNumbers - kSizesFrom;

constexpr at::ScalarType kTravels[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

void check_mark(const Note& note, std::int64_t mark, const char* what) {
  if (note[0] == mark) return;
  throw_error(ErrorCode::kProtocol, "expected ", what,
              " from the stage before, something "
              "else came: the stages are out of step");
}

// The first message of each step, from each stage to the one after it.
struct StepNote {
  bool trains = true;            // false: evaluates
  bool has_shapes = true;        // a TensorShape comes before each activation of this step
  std::int64_t num_samples = 0;  // in the batch

  Note encode() const { return {kStepMark, trains, has_shapes, num_samples}; }

  // Throws Error(kProtocol) if `note` is no such note.
  static StepNote decode(const Note& note) {
    check_mark(note, kStepMark, "the beginning of a step");
    return {.trains = note[1] != 0, .has_shapes = note[2] != 0, .num_samples = note[3]};
  }
};

struct TensorShape {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;

  friend bool operator==(const TensorShape&, const TensorShape&) = default;

  Note encode() const {
    Note note{kShapeMark, static_cast<std::int64_t>(dtype),
              static_cast<std::int64_t>(sizes.size())};
    std::copy(sizes.begin(), sizes.end(), note.begin() + kSizesFrom);
    return note;
  }

  // Throws Error(kProtocol) if `note` is no such note.
  static TensorShape decode(const Note& note) {
    check_mark(note, kShapeMark, "a tensor's shape");
    const auto num_sizes = static_cast<std::size_t>(
        std::clamp<std::int64_t>(note[2], 0, static_cast<std::int64_t>(kMaxDimensions)));
    const auto* first = note.begin() + kSizesFrom;
    return {.dtype = static_cast<at::ScalarType>(note[1]), .sizes = {first, first + num_sizes}};
  }

  // Returns "Float [32, 1024]".
  std::string text() const { return concat(c10::toString(dtype), " ", at::IntArrayRef(sizes)); }
};

TensorShape shape_of(const at::Tensor& tensor) {
  return {.dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
}

// Throws Error(kInvalidArgument) that begins with `whose` if stages can't exchange such a tensor.
void check_can_travel(const at::Tensor& tensor, const std::string& whose) {
  const auto refuse = [&](const std::string& why) { throw_invalid(whose, " ", why); };
  if (!tensor.defined()) refuse("is an undefined tensor");
  if (tensor.layout() != at::kStrided) refuse("is not a dense tensor: it can't be sent");
  if (std::ranges::find(kTravels, tensor.scalar_type()) == std::end(kTravels)) {
    refuse(concat("is ", c10::toString(tensor.scalar_type()),
                  ": float32, float64, float16 or bfloat16 can be sent"));
  }
  if (static_cast<std::size_t>(tensor.dim()) > kMaxDimensions) {
    refuse(concat("has ", tensor.dim(), " dimensions, the most is ", kMaxDimensions));
  }
}

// Returns a view of a dense tensor's memory; the tensor must be contiguous and outlive the view.
TensorView message_view(const at::Tensor& tensor) { return view_of(tensor, "a stage's output"); }

at::Tensor empty_note() {
  return at::empty({static_cast<std::int64_t>(kNoteNumbers)}, at::TensorOptions().dtype(at::kLong));
}

struct LinkOptions {
  int peer = 0;
  c10::Device device{c10::kCPU};
  std::optional<std::chrono::milliseconds> timeout{};
  // Receives are posted before they are asked for. This needs a queue of its own for each (peer,
  // direction) ("host"), so that a waiting receive delays nothing else on this rank.
  bool ahead = true;
};

// One direction between two neighbours: tensors in order, sent while the stage computes. Used by
// one thread. The communicator outlives it. After an error it keeps the memory of its messages
// until the communicator is destroyed.
class SendLink {
 public:
  SendLink(Communicator& communicator, const LinkOptions& options)
      : communicator_(communicator), options_(options) {}

  // Returns at once, and keeps the tensor's memory until it is sent. Throws the communicator's
  // errors, also those of earlier messages.
  void send(const at::Tensor& tensor) {
    while (!pending_.empty() && pending_.front().work->is_completed()) finish_front();
    const at::Tensor dense = tensor.contiguous();
    const KeptOnError kept(communicator_, {dense});
    pending_.push_back({communicator_.send(message_view(dense), options_.peer,
                                           {.async = true, .timeout = options_.timeout}),
                        dense});
  }

  void send(const Note& note) {
    const at::Tensor numbers = empty_note();
    std::memcpy(numbers.mutable_data_ptr(), note.data(), sizeof note);
    send(numbers.to(options_.device));
  }

  // Waits for all that was sent.
  void finish() {
    while (!pending_.empty()) finish_front();
  }

  // Drops all operations, but keeps their memory.
  void forget() {
    for (Pending& each : pending_) each.work = nullptr;
  }

 private:
  struct Pending {
    WorkPtr work;
    at::Tensor tensor;
  };

  // Removes the first message. It stays if wait() throws: its memory may still be read.
  void finish_front() {
    pending_.front().work->wait();
    pending_.pop_front();
  }

  Communicator& communicator_;
  const LinkOptions options_;
  std::deque<Pending> pending_;
};

class ReceiveLink {
 public:
  ReceiveLink(Communicator& communicator, const LinkOptions& options)
      : communicator_(communicator), options_(options) {}

  // Says that a tensor of this shape comes after those that are expected already.
  void expect(const TensorShape& shape) {
    expected_.push_back(shape);
    if (options_.ahead && !work_) post();
  }

  // Returns the first expected tensor. Throws the communicator's errors.
  at::Tensor receive() {
    if (!work_) post();
    work_->wait();
    work_ = nullptr;
    at::Tensor received = std::exchange(posted_, {});
    if (options_.ahead && !expected_.empty()) post();
    return received;
  }

  // Receives a note. No tensor may be expected meanwhile.
  Note receive_note() {
    DDPRUN_CHECK(!work_ && expected_.empty());
    posted_ = empty_note().to(options_.device);
    communicator_.recv(message_view(posted_), options_.peer, {.timeout = options_.timeout});
    const at::Tensor on_host = std::exchange(posted_, {}).cpu();
    Note note;
    std::memcpy(note.data(), on_host.const_data_ptr(), sizeof note);
    return note;
  }

  void forget() { work_ = nullptr; }

 private:
  void post() {
    const TensorShape& shape = expected_.front();
    posted_ =
        at::empty(shape.sizes, at::TensorOptions().dtype(shape.dtype).device(options_.device));
    work_ = communicator_.recv(message_view(posted_), options_.peer,
                               {.async = true, .timeout = options_.timeout});
    expected_.pop_front();
  }

  Communicator& communicator_;
  const LinkOptions options_;
  std::deque<TensorShape> expected_;  // those that are not posted yet
  WorkPtr work_;                      // of the receive that is posted
  at::Tensor posted_;
};

// Returns the device of the communicator's buffers.
c10::Device device_of(const Communicator& communicator) {
  if (communicator.backend() != "nccl") return c10::kCPU;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
}

}  // namespace

// Activations and gradients have a communicator each: on a device a message that waits for its peer
// delays those behind it on the same communicator. Both belong to this object. So a step that ends
// with an error can end the other stages, and their work under way ends.
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
    const std::vector<int> all = all_ranks(num_stages_);
    activations_ = communicator.split(all, {.name = "activations"});
    gradients_ = communicator.split(all, {.name = "gradients"});
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

  // Drops the operations. The communicators are then destroyed before the links, whose memory they
  // use.
  ~Impl() {
    if (activations_in_) activations_in_->forget(), gradients_out_->forget();
    if (activations_out_) activations_out_->forget(), gradients_in_->forget();
  }

  int stage() const { return stage_; }
  int num_stages() const { return num_stages_; }

  at::Tensor train_step(const at::Tensor& input, const Loss& loss) {
    if (is_last() && !loss) {
      throw_invalid("stage ", stage_,
                    " is the last one: train_step() needs a loss there; "
                    "nothing has begun");
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
    at::Tensor output;  // on the last stage in training: its part of the loss
  };

  // Shapes of the messages of one kind of step, by micro-batch, as they were sent last.
  struct Shapes {
    std::optional<TensorShape> batch;  // first stage
    std::vector<TensorShape> in, out;
  };

  bool is_last() const { return stage_ == num_stages_ - 1; }

  // Checks that every stage has the same options; else all throw.
  void agree(Communicator& communicator) {
    const std::string mine =
        concat(to_string(options_.kind), " with ", options_.num_micro_batches,
               " micro-batches, broadcast_loss ", options_.broadcast_loss ? "on" : "off");
    const std::vector<std::string> all = gather_texts(mine, kAgreementBytes, communicator, device_);
    for (std::size_t other = 1; other < all.size(); ++other) {
      if (all[other] == all[0]) continue;
      throw_invalid("the stages of a pipeline have the same options: stage 0 has ", all[0],
                    ", stage ", other, " ", all[other]);
    }
    if (options_.num_micro_batches < 1) {
      throw_invalid("a pipeline of ", options_.num_micro_batches,
                    " micro-batches can't be: at least 1");
    }
  }

  void check_input(const at::Tensor& input) const {
    if (stage_ > 0) return;
    const auto refuse = [](const std::string& what) {
      throw_invalid("stage 0 of a pipeline needs a batch: ", what, "; nothing has begun");
    };
    if (!input.defined()) refuse("its input is an undefined tensor");
    if (input.dim() == 0 || input.size(0) == 0) {
      refuse(concat("its input has no samples, its sizes are ", input.sizes()));
    }
  }

  // Runs a step. If it throws, the other stages end, too, and no later step begins: the links still
  // hold the messages under way.
  template <typename Step>
  at::Tensor guarded(Step step) {
    if (!failed_.empty()) {
      throw_error(ErrorCode::kAborted, "an earlier step of this pipeline has failed: ", failed_);
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
        throw_invalid("stage ", stage_ - 1, " called ", name(note.trains), ", stage ", stage_, " ",
                      name(trains), ": every stage calls the same");
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
      throw_invalid("the loss of micro-batch ", part.index, " is ",
                    value.defined() ? shape_of(value).text() : "undefined",
                    ": it must be one number, the mean over the micro-batch");
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
      throw_invalid(output_text(static_cast<int>(index)), " is ", shape.text(), ", it was ",
                    current_->out[index].text(),
                    " in the step before: for inputs of the same "
                    "shape a stage's outputs have the same shape, too");
    }
    activations_out_->send(live.output.detach());
    if (trains) {
      gradients_in_->expect(shape);
    } else {
      live.output.reset();
    }
  }

  // Before the call `gradient_` is the output's gradient, afterwards the input's.
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
      const KeptOnError kept(*activations_, {loss});
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
  std::string failed_;  // why a step closed the channels; empty: none did

  // The step under way.
  std::vector<MicroBatch> parts_;
  std::vector<Live> live_;
  Shapes* current_ = nullptr;
  bool sends_shapes_ = true;
  at::Tensor gradient_, loss_;

  std::optional<ReceiveLink> activations_in_, gradients_in_;
  std::optional<SendLink> activations_out_, gradients_out_;
  std::unique_ptr<Communicator> activations_, gradients_;  // last: destroyed before the links
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
