// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checked_communicator.h"

#include <array>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/operation_facts.h"
#include "common/text.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/rank_group.h"

namespace ddprun {
namespace {

// The parts of a call that the ranks compare.
using Call = std::array<std::uint64_t, 2>;

// Keeps the failures of the communicators that compare calls. A group's communicator shares its
// parent's record of operations, so it reports here, too.
class Side {
 public:
  Side() {
    progress_->on_operation_failed([missing = missing_](const OperationFailure& failure) {
      const std::lock_guard lock(missing->mutex);
      missing->ranks = failure.missing;
    });
  }

  const std::shared_ptr<WorkerProgress>& progress() const { return progress_; }
  std::vector<int> take_missing() {
    const std::lock_guard lock(missing_->mutex);
    return std::exchange(missing_->ranks, {});
  }

 private:
  struct Missing {
    std::mutex mutex;
    std::vector<int> ranks;  // guarded by mutex: those of the last comparison that failed
  };

  const std::shared_ptr<Missing> missing_ = std::make_shared<Missing>();  // shared with the call
  // Shared with the communicators, which report to this object alone.
  const std::shared_ptr<WorkerProgress> progress_ = std::make_shared<WorkerProgress>(0);
};

class CheckedCommunicator final : public Communicator {
 public:
  // `group` has its ranks, if it comes from a split.
  CheckedCommunicator(std::unique_ptr<Communicator> checked, std::uint32_t number,
                      std::shared_ptr<Side> told, std::unique_ptr<Communicator> side,
                      RankGroup group = {})
      : checked_(std::move(checked)),
        number_(number),
        group_(std::move(group)),
        told_(std::move(told)),
        side_(std::move(side)) {}

  int rank() const override { return checked_->rank(); }
  int size() const override { return checked_->size(); }
  std::string_view backend() const override { return checked_->backend(); }
  WorkerProgress* progress() override { return checked_->progress(); }
  bool narrows() const override { return checked_->narrows(); }
  void follow_stream(const CurrentStream& current) override { checked_->follow_stream(current); }
  bool captures_graph() const override { return checked_->captures_graph(); }
  void keep(std::shared_ptr<void> memory) override { checked_->keep(std::move(memory)); }

  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    if (!call.is_message()) compare(call, options);
    return checked_->run(call, options);
  }
  WorkPtr group(const std::function<void()>& calls, bool async) override {
    return checked_->group(calls, async);
  }
  void barrier(const CallOptions& options) override {
    compare({CollectiveKind::kBarrier}, options);
    checked_->barrier(options);
  }
  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override {
    compare({CollectiveKind::kAllocate, {.count = size_bytes, .dtype = DType::kUInt8}}, {});
    return checked_->allocate(size_bytes);
  }
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const SplitOptions& options) override {
    int place = 0;
    RankGroup its = make_group(group_, rank(), size(), ranks, options, &place);
    auto checked = checked_->split(ranks, options);
    WorkerProgress* const progress = checked->progress();
    const std::size_t number =
        progress != nullptr ? progress->recorder().communicators().size() - 1 : 0;
    return std::make_unique<CheckedCommunicator>(std::move(checked),
                                                 static_cast<std::uint32_t>(number), told_,
                                                 side_->split(ranks, options), std::move(its));
  }
  void abort(std::string_view reason) override {
    checked_->abort(reason);
    side_->abort(reason);
  }

 private:
  OperationFacts unpacked(const Call& call) const {
    OperationFacts facts;
    unpack_facts(call[0], facts);
    facts.count = call[1];
    facts.communicator = number_;
    facts.sequence = num_compared_;
    return facts;
  }

  void compare(const CollectiveCall& made, const CallOptions& options) {
    const OperationFacts mine = facts_of(made, number_, ++num_compared_);
    Call call{pack_facts(mine), mine.count};
    std::vector<Call> all(static_cast<std::size_t>(size()));
    CallOptions blocking = options;
    blocking.async = false;
    const Clock::time_point begun = Clock::now();
    try {
      side_->all_gather(
          {.data = call.data(), .count = call.size(), .dtype = DType::kInt64},
          {.data = all.data(), .count = call.size() * all.size(), .dtype = DType::kInt64},
          blocking);
    } catch (const Error& error) {  // the error names the group already
      end_with(
          mine,
          Error(error.code(), concat(text_of(mine), " (DDPRUN_DEBUG=collectives): ", error.what())),
          begun, "");
    }
    for (std::size_t other = 1; other < all.size(); ++other) {
      if (all[other] == all[0]) continue;
      end_with(mine,
               Error(ErrorCode::kProtocol,
                     concat("ranks made different calls: rank ", other, " called ",
                            text_of(unpacked(all[other])), " where rank 0 called ",
                            text_of(unpacked(all[0])),
                            "; every rank must make the same calls in the same order")),
               begun, group_.prefix());
    }
  }

  [[noreturn]] void end_with(const OperationFacts& facts, const Error& error,
                             Clock::time_point begun, const std::string& prefix) {
    checked_->abort(error.what());
    const std::vector<int> missing = told_->take_missing();
    if (progress() != nullptr && !std::exchange(is_told_, true)) {
      progress()->operation_failed(
          facts, error, missing, size(),
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun));
    }
    throw Error(error.code(), prefix + error.what());
  }

  const std::unique_ptr<Communicator> checked_;
  const std::uint32_t number_;
  const RankGroup group_;
  const std::shared_ptr<Side> told_;  // shared with the communicators of groups
  const std::unique_ptr<Communicator> side_;

  // Used on the caller's thread only.
  std::uint64_t num_compared_ = 0;
  bool is_told_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_checked_communicator(std::unique_ptr<Communicator> checked,
                                                        std::uint32_t number,
                                                        const SideMaker& make_side) {
  auto told = std::make_shared<Side>();
  auto side = make_side(told->progress());
  return std::make_unique<CheckedCommunicator>(std::move(checked), number, std::move(told),
                                               std::move(side));
}

}  // namespace ddprun
