// SPDX-License-Identifier: Apache-2.0
// When each stage of a pipeline would do what: a schedule's cost at best. All forwards are taken to
// be equally long, all backwards, too, and messages to take no time. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/text.h"
#include "worker_sdk/parallel/pipeline_schedule.h"

namespace ddprun::test {

struct PipelineSpan {
  PipelineOperation::Kind kind = PipelineOperation::Kind::kForward;  // or kBackward
  int micro_batch = 0;
  int begin = 0, end = 0;  // in the caller's unit of time
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
  using Kind = PipelineOperation::Kind;
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

// Returns each stage's operations in order of time. Each begins as soon as its stage is free and
// its input there.
inline std::vector<std::vector<PipelineSpan>> pipeline_timeline(PipelineKind kind, int num_stages,
                                                                int num_micro_batches,
                                                                int forward_time,
                                                                int backward_time) {
  return Clockwork(kind, num_stages, num_micro_batches, forward_time, backward_time).run();
}

// Returns a line for each stage, with forwards and backwards of one unit each: "F0", "B0", "·" for
// idle.
inline std::string draw_pipeline(PipelineKind kind, int num_stages, int num_micro_batches) {
  const auto timeline = pipeline_timeline(kind, num_stages, num_micro_batches, 1, 1);
  const std::size_t width = concat("B", num_micro_batches - 1, " ").size();
  std::string drawing;
  for (std::size_t stage = 0; stage < timeline.size(); ++stage) {
    std::string line = concat("stage ", stage, "  ");
    int now = 0;
    for (const PipelineSpan& span : timeline[stage]) {
      for (; now < span.begin; ++now) line += "·" + std::string(width - 1, ' ');
      const bool is_forward = span.kind == PipelineOperation::Kind::kForward;
      const std::string cell = concat(is_forward ? "F" : "B", span.micro_batch);
      line += cell + std::string(width - cell.size(), ' ');
      now = span.end;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    drawing += line + "\n";
  }
  return drawing;
}

}  // namespace ddprun::test
