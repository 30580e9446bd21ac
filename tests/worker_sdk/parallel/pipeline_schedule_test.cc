// SPDX-License-Identifier: Apache-2.0
// Every schedule of up to 8 stages and 16 micro-batches, run by simulated processes.
#include "worker_sdk/parallel/pipeline_schedule.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using ddprun::test::code_of;
using ddprun::test::Contains;

namespace {

using Kind = PipelineOperation::Kind;
using Schedules = std::vector<std::vector<PipelineOperation>>;  // by stage

Schedules schedules_of(PipelineKind kind, int num_stages, int num_micro_batches) {
  Schedules all;
  for (int stage = 0; stage < num_stages; ++stage) {
    all.push_back(pipeline_schedule(kind, stage, num_stages, num_micro_batches));
  }
  return all;
}

template <typename Check>
void for_all(Check check) {
  for (const PipelineKind kind : {PipelineKind::kGpipe, PipelineKind::k1F1B}) {
    for (int num_stages = 1; num_stages <= 8; ++num_stages) {
      for (int num_micro_batches = 1; num_micro_batches <= 16; ++num_micro_batches) {
        INFO(to_string(kind) << ", " << num_stages << " stages, " << num_micro_batches
                             << " micro-batches");
        check(kind, num_stages, num_micro_batches);
      }
    }
  }
}

bool is_send(Kind kind) { return kind == Kind::kSendActivation || kind == Kind::kSendGradient; }
bool is_receive(Kind kind) {
  return kind == Kind::kReceiveActivation || kind == Kind::kReceiveGradient;
}

// The stage at the other end of a message.
int peer_of(int stage, Kind kind) {
  return kind == Kind::kSendActivation || kind == Kind::kReceiveGradient ? stage + 1 : stage - 1;
}

// The messages under way, by (from, to).
using Queues = std::map<std::pair<int, int>, std::deque<int>>;

// Runs all stages until none can go on. A send ends when fewer than `room` messages are under way
// to that stage. With `room` 0 it ends when its receiver stands at the matching receive. Throws if
// a stage receives another message than it expects. Returns the number of operations that were
// never done.
std::size_t left_over(const Schedules& schedules, std::size_t room) {
  std::vector<std::size_t> next(schedules.size());
  Queues queues;
  const auto stands_at_receive = [&](int from, int to) {
    const auto at = next[static_cast<std::size_t>(to)];
    const auto& theirs = schedules[static_cast<std::size_t>(to)];
    return at < theirs.size() && is_receive(theirs[at].kind) &&
           peer_of(to, theirs[at].kind) == from;
  };
  const auto step = [&](std::size_t index) {
    if (next[index] == schedules[index].size()) return false;
    const PipelineOperation operation = schedules[index][next[index]];
    const int stage = static_cast<int>(index), peer = peer_of(stage, operation.kind);
    if (is_send(operation.kind)) {
      std::deque<int>& queue = queues[{stage, peer}];
      const bool fits = room > 0 ? queue.size() < room : stands_at_receive(stage, peer);
      if (!fits) return false;
      queue.push_back(operation.micro_batch);
      if (room == 0) ++next[static_cast<std::size_t>(peer)], queue.pop_front();
    } else if (is_receive(operation.kind)) {
      std::deque<int>& queue = queues[{peer, stage}];
      if (queue.empty()) return false;
      test::expect(queue.front() == operation.micro_batch, "the message that is expected comes");
      queue.pop_front();
    }
    ++next[index];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t index = 0; index < schedules.size(); ++index) {
      while (step(index)) moved = true;
    }
  }
  std::size_t left = 0;
  for (std::size_t i = 0; i < schedules.size(); ++i) left += schedules[i].size() - next[i];
  for (const auto& [ends, queue] : queues) left += queue.size();
  return left;
}

// Simulates streams of a device. On every stage, activations and gradients have one each. The
// messages of a stream run one after the other, and only while both ends are at them. Computing
// waits for its inputs, and sends wait for their data. Nobody waits for a send to end.
bool streams_end(const Schedules& schedules) {
  struct Message {
    int from, to, micro_batch;
    bool operator==(const Message&) const = default;
  };
  struct Stage {
    std::size_t next = 0;
    std::deque<Message> streams[2];  // one of activations, one of gradients
    std::vector<Message> received;
  };
  std::vector<Stage> stages(schedules.size());
  const auto issue = [&](std::size_t index) {  // false: it can't go on
    Stage& stage = stages[index];
    if (stage.next == schedules[index].size()) return false;
    const PipelineOperation operation = schedules[index][stage.next];
    const int own = static_cast<int>(index), peer = peer_of(own, operation.kind);
    const bool is_gradient =
        operation.kind == Kind::kSendGradient || operation.kind == Kind::kReceiveGradient;
    if (is_send(operation.kind)) {
      stage.streams[is_gradient].push_back({own, peer, operation.micro_batch});
    } else if (is_receive(operation.kind)) {
      const Message message{peer, own, operation.micro_batch};
      const auto has = [&](const auto& list) {
        return std::find(list.begin(), list.end(), message) != list.end();
      };
      if (!has(stage.received)) {
        if (!has(stage.streams[is_gradient])) stage.streams[is_gradient].push_back(message);
        return false;
      }
    }
    ++stage.next;
    return true;
  };
  const auto deliver = [&](std::size_t index, int stream) {
    std::deque<Message>& own = stages[index].streams[stream];
    if (own.empty() || own.front().from != static_cast<int>(index)) return false;
    Stage& receiver = stages[static_cast<std::size_t>(own.front().to)];
    std::deque<Message>& theirs = receiver.streams[stream];
    if (theirs.empty() || theirs.front() != own.front()) return false;
    receiver.received.push_back(own.front());
    own.pop_front();
    theirs.pop_front();
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t index = 0; index < stages.size(); ++index) {
      while (issue(index)) moved = true;
      for (const int stream : {0, 1}) {
        while (deliver(index, stream)) moved = true;
      }
    }
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].next != schedules[i].size()) return false;
    if (!stages[i].streams[0].empty() || !stages[i].streams[1].empty()) return false;
  }
  return true;
}

}  // namespace

TEST_CASE(
    "pipeline_schedule: every send meets its receive, in order, and no stage waits for ever") {
  for_all([](PipelineKind kind, int num_stages, int num_micro_batches) {
    const Schedules schedules = schedules_of(kind, num_stages, num_micro_batches);
    for (const std::size_t room : {1, 2, 100}) CHECK(left_over(schedules, room) == 0);
    CHECK(streams_end(schedules));
  });
}

TEST_CASE("pipeline_schedule: 1f1b would not end with sends that end only at their receive") {
  CHECK(left_over(schedules_of(PipelineKind::k1F1B, 2, 2), 0) > 0);
  CHECK(left_over(schedules_of(PipelineKind::kGpipe, 2, 2), 0) == 0);
}

TEST_CASE("pipeline_schedule: max_live_activations() is the most that is live at once") {
  for_all([](PipelineKind kind, int num_stages, int num_micro_batches) {
    for (int stage = 0; stage < num_stages; ++stage) {
      int live = 0, most = 0;
      for (const auto& operation : pipeline_schedule(kind, stage, num_stages, num_micro_batches)) {
        if (operation.kind == Kind::kForward) most = std::max(most, ++live);
        if (operation.kind == Kind::kBackward) --live;
      }
      CHECK(most == (kind == PipelineKind::kGpipe
                         ? num_micro_batches
                         : std::min(num_stages - stage, num_micro_batches)));
      CHECK(most == max_live_activations(kind, stage, num_stages, num_micro_batches));
    }
  });
}

TEST_CASE("pipeline_schedule: each micro-batch goes forward and backward once, in order") {
  for_all([](PipelineKind kind, int num_stages, int num_micro_batches) {
    for (int stage = 0; stage < num_stages; ++stage) {
      std::map<Kind, int> done;
      Kind before = Kind::kForward;
      for (const auto& operation : pipeline_schedule(kind, stage, num_stages, num_micro_batches)) {
        CHECK(operation.micro_batch == done[operation.kind]++);
        if (operation.kind == Kind::kForward && stage > 0)
          CHECK(before == Kind::kReceiveActivation);
        if (operation.kind == Kind::kBackward) {
          CHECK(operation.micro_batch < done[Kind::kForward]);
          if (stage < num_stages - 1) CHECK(before == Kind::kReceiveGradient);
        }
        before = operation.kind;
      }
      const auto times = [&](Kind what) { return done[what]; };
      CHECK(times(Kind::kForward) == num_micro_batches);
      CHECK(times(Kind::kBackward) == num_micro_batches);
      const int from_before = stage > 0 ? num_micro_batches : 0;
      const int from_after = stage < num_stages - 1 ? num_micro_batches : 0;
      CHECK(times(Kind::kReceiveActivation) == from_before);
      CHECK(times(Kind::kSendGradient) == from_before);
      CHECK(times(Kind::kReceiveGradient) == from_after);
      CHECK(times(Kind::kSendActivation) == from_after);
    }
  });
}

TEST_CASE("forward_schedule: forwards only, and they end") {
  for (int num_stages = 1; num_stages <= 8; ++num_stages) {
    Schedules all;
    for (int stage = 0; stage < num_stages; ++stage) {
      all.push_back(forward_schedule(stage, num_stages, 5));
      CHECK(all.back().size() == 5u * (1 + (stage > 0) + (stage < num_stages - 1)));
    }
    CHECK(left_over(all, 1) == 0);
    CHECK(streams_end(all));
  }
}

TEST_CASE("pipeline_schedule: an impossible schedule is refused") {
  std::string what;
  const auto code_for = [&](int stage, int num_stages, int num_micro_batches) {
    return code_of(
        [&] { pipeline_schedule(PipelineKind::k1F1B, stage, num_stages, num_micro_batches); },
        &what);
  };
  CHECK(code_for(2, 2, 4) == ErrorCode::kInvalidArgument);
  CHECK_THAT(what, Contains("no stage 2 in a pipeline of 2: they are 0 … 1"));
  CHECK(code_for(-1, 2, 4) == ErrorCode::kInvalidArgument);
  CHECK(code_for(0, 0, 4) == ErrorCode::kInvalidArgument);
  CHECK(code_for(0, 2, 0) == ErrorCode::kInvalidArgument);
  CHECK_THAT(what, Contains("2 stages and 0 micro-batches can't be"));
  CHECK(code_of([] { forward_schedule(3, 2, 1); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("PipelineKind: its names are read back, others are refused") {
  for (const PipelineKind kind : {PipelineKind::kGpipe, PipelineKind::k1F1B}) {
    CHECK(parse_pipeline_kind(to_string(kind)) == kind);
  }
  std::string what;
  CHECK(code_of([] { parse_pipeline_kind("zb"); }, &what) == ErrorCode::kInvalidArgument);
  CHECK_THAT(what, Contains("no pipeline schedule 'zb': gpipe or 1f1b"));
}
