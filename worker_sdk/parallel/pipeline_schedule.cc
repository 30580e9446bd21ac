// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/parallel/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/parallel/micro_batches.h"
#include "worker_sdk/parallel/pipeline_timeline.h"

namespace ddprun {
namespace {

using Kind = PipelineOperation::Kind;

void check(int stage, int num_stages, int num_micro_batches) {
  if (num_stages < 1 || num_micro_batches < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("a pipeline of ", num_stages, " stages and ", num_micro_batches,
                       " micro-batches can't be: at least 1 of each"));
  }
  if (stage < 0 || stage >= num_stages) {
    throw Error(ErrorCode::kInvalidArgument, concat("no stage ", stage, " in a pipeline of ",
                                                    num_stages, ": they are 0 … ", num_stages - 1));
  }
}

// Operations of one stage, with the messages that its neighbours need.
class Stage {
 public:
  Stage(int stage, int num_stages) : is_first_(stage == 0), is_last_(stage == num_stages - 1) {}

  void forward(int micro_batch) {
    if (!is_first_) add(Kind::kReceiveActivation, micro_batch);
    add(Kind::kForward, micro_batch);
    if (!is_last_) add(Kind::kSendActivation, micro_batch);
  }

  void backward(int micro_batch) {
    if (!is_last_) add(Kind::kReceiveGradient, micro_batch);
    add(Kind::kBackward, micro_batch);
    if (!is_first_) add(Kind::kSendGradient, micro_batch);
  }

  std::vector<PipelineOperation> take() { return std::move(operations_); }

 private:
  void add(Kind kind, int micro_batch) { operations_.push_back({kind, micro_batch}); }

  const bool is_first_, is_last_;
  std::vector<PipelineOperation> operations_;
};

// Runs every stage's operations until all are done. A stage goes on as far as its messages were
// sent.
class Clockwork {
 public:
  Clockwork(PipelineKind kind, int num_stages, int num_micro_batches, int forward_time,
            int backward_time)
      : forward_time_(forward_time),
        backward_time_(backward_time),
        stages_(static_cast<std::size_t>(num_stages)) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].operations =
          pipeline_schedule(kind, static_cast<int>(s), num_stages, num_micro_batches);
    }
  }

  std::vector<std::vector<PipelineSpan>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        while (step(s)) moved = true;
      }
    }
    std::vector<std::vector<PipelineSpan>> spans;
    for (Stage& stage : stages_) spans.push_back(std::move(stage.spans));
    return spans;
  }

 private:
  struct Stage {
    std::vector<PipelineOperation> operations;
    std::size_t next = 0;
    int now = 0;
    std::vector<int> activations_sent, gradients_sent;  // time of sending, by micro-batch
    std::vector<PipelineSpan> spans;
  };

  // Returns false if the stage is done, or waits for a message that wasn't sent yet.
  bool step(std::size_t index) {
    Stage& stage = stages_[index];
    if (stage.next == stage.operations.size()) return false;
    const PipelineOperation operation = stage.operations[stage.next];
    switch (operation.kind) {
      case Kind::kReceiveActivation:
        if (!receive(stage, stages_[index - 1].activations_sent, operation)) return false;
        break;
      case Kind::kReceiveGradient:
        if (!receive(stage, stages_[index + 1].gradients_sent, operation)) return false;
        break;
      case Kind::kSendActivation:
        stage.activations_sent.push_back(stage.now);
        break;
      case Kind::kSendGradient:
        stage.gradients_sent.push_back(stage.now);
        break;
      case Kind::kForward:
        work(stage, operation, forward_time_);
        break;
      case Kind::kBackward:
        work(stage, operation, backward_time_);
        break;
    }
    ++stage.next;
    return true;
  }

  static bool receive(Stage& stage, const std::vector<int>& sent,
                      const PipelineOperation& operation) {
    const auto place = static_cast<std::size_t>(operation.micro_batch);
    if (place >= sent.size()) return false;
    stage.now = std::max(stage.now, sent[place]);
    return true;
  }

  static void work(Stage& stage, const PipelineOperation& operation, int time) {
    stage.spans.push_back({operation.kind, operation.micro_batch, stage.now, stage.now + time});
    stage.now += time;
  }

  const int forward_time_, backward_time_;
  std::vector<Stage> stages_;
};

}  // namespace

const char* to_string(PipelineKind kind) { return kind == PipelineKind::kGpipe ? "gpipe" : "1f1b"; }

PipelineKind parse_pipeline_kind(std::string_view text) {
  for (const PipelineKind kind : {PipelineKind::kGpipe, PipelineKind::k1F1B}) {
    if (text == to_string(kind)) return kind;
  }
  throw Error(ErrorCode::kInvalidArgument,
              concat("no pipeline schedule '", text, "': gpipe or 1f1b"));
}

const char* to_string(PipelineOperation::Kind kind) {
  constexpr std::array kNames = {"receive activation", "forward",  "send activation",
                                 "receive gradient",   "backward", "send gradient"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::vector<PipelineOperation> pipeline_schedule(PipelineKind kind, int stage, int num_stages,
                                                 int num_micro_batches) {
  const int ahead = max_live_activations(kind, stage, num_stages, num_micro_batches);
  Stage operations(stage, num_stages);
  // Once `ahead` micro-batches are live, each forward waits for a backward. So the first ahead - 1
  // are done without one; then forwards and backwards take turns.
  for (int next = 0; next < ahead - 1; ++next) operations.forward(next);
  int done = 0;
  for (int next = ahead - 1; next < num_micro_batches; ++next) {
    operations.forward(next);
    operations.backward(done++);
  }
  while (done < num_micro_batches) operations.backward(done++);
  return operations.take();
}

std::vector<PipelineOperation> forward_schedule(int stage, int num_stages, int num_micro_batches) {
  check(stage, num_stages, num_micro_batches);
  Stage operations(stage, num_stages);
  for (int next = 0; next < num_micro_batches; ++next) operations.forward(next);
  return operations.take();
}

int max_live_activations(PipelineKind kind, int stage, int num_stages, int num_micro_batches) {
  check(stage, num_stages, num_micro_batches);
  return kind == PipelineKind::kGpipe ? num_micro_batches
                                      : std::min(num_stages - stage, num_micro_batches);
}

std::vector<std::vector<PipelineSpan>> pipeline_timeline(PipelineKind kind, int num_stages,
                                                         int num_micro_batches, int forward_time,
                                                         int backward_time) {
  if (forward_time < 1 || backward_time < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("a forward of ", forward_time, " and a backward of ", backward_time,
                       " units of time can't be: at least 1 each"));
  }
  max_live_activations(kind, 0, num_stages, num_micro_batches);  // checks the arguments
  return Clockwork(kind, num_stages, num_micro_batches, forward_time, backward_time).run();
}

std::string draw_pipeline(PipelineKind kind, int num_stages, int num_micro_batches) {
  const auto timeline = pipeline_timeline(kind, num_stages, num_micro_batches);
  const std::size_t width = concat("B", num_micro_batches - 1, " ").size();
  std::string drawing;
  for (std::size_t stage = 0; stage < timeline.size(); ++stage) {
    std::string line = concat("stage ", stage, "  ");
    int now = 0;
    for (const PipelineSpan& span : timeline[stage]) {
      for (; now < span.begin; ++now) line += "·" + std::string(width - 1, ' ');
      const std::string cell = concat(span.kind == Kind::kForward ? "F" : "B", span.micro_batch);
      line += cell + std::string(width - cell.size(), ' ');
      now = span.end;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    drawing += line + "\n";
  }
  return drawing;
}

std::vector<MicroBatch> split_batch(std::int64_t count, int num_parts) {
  const std::int64_t parts = std::min<std::int64_t>(count, num_parts);
  std::vector<MicroBatch> result;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - first;
    const double weight = static_cast<double>(size) / static_cast<double>(count);
    result.push_back({first, size, weight, static_cast<int>(part)});
  }
  return result;
}

}  // namespace ddprun
