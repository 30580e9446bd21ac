// SPDX-License-Identifier: Apache-2.0
// A mirror whose connection ends, or falls silent, after each of its frames: what anybody was told
// is with both, and the standby is one batch ahead at most.
#include <algorithm>
#include <string>

#include "tests/rendezvous/ha/frame_relay.h"
#include "tests/rendezvous/ha/mirror_pair.h"
#include "tests/support/log_lines.h"

namespace ddprun::ha::testing {
namespace {

using journal::Rows;

constexpr int kBeforeSync = 3, kNumBatches = 7;

class CutRun {
 public:
  CutRun(std::size_t num_frames, FrameRelay::Then then, std::chrono::milliseconds patience)
      : leader_(io_, shelf_, with_patience(patience)),
        relay_(io_, leader_.port()),
        standby_(io_, listening_at(num_frames, then), "b:29400", patience) {}

  // Whether its first connection had an end; on a slow machine that may come before the limit.
  bool run() {
    REQUIRE(run_until(io_, [this] {
      commit_next();
      if (!leader_.deposed.empty()) return true;
      return standby_.client->is_in_sync() && leader_.has_said(kNumBatches);
    }));
    leader_.deposed.empty() ? check_in_sync() : check_deposed();
    return relay_.is_over() || relay_.num_connections() > 1 || !leader_.deposed.empty();
  }

 private:
  static LeaderOptions with_patience(std::chrono::milliseconds patience) {
    LeaderOptions options;
    options.silence = options.ack = patience;
    return options;
  }

  std::uint16_t listening_at(std::size_t num_frames, FrameRelay::Then then) {
    shelf_->commit({{"jobs/1/job", "{}"}, {"finished/9", "over"}, {"leader/term", "mine"}});
    relay_.limit(num_frames, then);
    return relay_.port();
  }

  // Some while the standby copies, the others once it mirrors.
  void commit_next() {
    const bool is_time = num_ < kBeforeSync || !leader_.mirrored_by.empty();
    if (num_ == kNumBatches || !is_time || static_cast<int>(leader_.said.size()) < num_) return;
    ++num_;
    const std::string number = std::to_string(num_);
    leader_.commit({{"jobs/1/state", number},
                    {"jobs/1/nodes/" + number, std::string(1000, 'x')},
                    {"jobs/1/nodes/" + std::to_string(num_ - 2), std::nullopt},
                    {"stores/1/1/log/" + number, "y"}},
                   num_);
  }

  static int last_batch(const Rows& rows) {
    const auto row = rows.find("jobs/1/state");
    return row == rows.end() ? 0 : std::stoi(row->second);
  }

  void check_said() {
    CHECK(std::is_sorted(leader_.said.begin(), leader_.said.end()));
    if (!leader_.said.empty()) CHECK(last_batch(shelf_->rows()) >= leader_.said.back());
  }

  void check_in_sync() {
    check_said();
    CHECK(standby_.in_sync.back() == synced_with_leader());
    CHECK(shelf_->rows().at(kStandbyRow) == encode_standby_row("b:29400"));
    const MirroredJournal kept = standby_.stop();
    CHECK(Standby::job_rows(kept) == shelf_->job_rows());
    CHECK(Standby::synced_of(kept) == synced_with_leader());
  }

  void check_deposed() {
    check_said();
    const std::size_t num_said = leader_.said.size();
    leader_.commit({{"jobs/1/state", "99"}}, 99);
    const MirroredJournal kept = standby_.stop();
    CHECK(leader_.said.size() == num_said);
    CHECK(leader_.deposed.size() == 1);
    CHECK(leader_.standbys_lost.back().was_synced);
    Rows rows = Standby::job_rows(kept);
    if (!leader_.said.empty()) CHECK(last_batch(rows) >= leader_.said.back());
    if (last_batch(rows) == last_batch(shelf_->rows())) {
      CHECK(rows == shelf_->job_rows());
      return;
    }
    // One ahead: what it was before is known of the rows that matter.
    CHECK(last_batch(rows) == last_batch(shelf_->rows()) + 1);
    journal::apply_batch(kept.before, rows);
    Rows theirs = shelf_->job_rows();
    for (Rows* each : {&rows, &theirs}) {
      std::erase_if(*each, [](const auto& row) { return !row.first.starts_with("jobs/"); });
    }
    CHECK(rows == theirs);
  }

  boost::asio::io_context io_{1};
  const std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();  // second owner: its file
  Leader leader_;
  FrameRelay relay_;
  Standby standby_;
  int num_ = 0;
};

TEST_CASE("Mirror: its connection is cut after each frame in turn") {
  const test::LogLines quiet;
  std::size_t num_frames = 0;
  while (CutRun(num_frames, FrameRelay::Then::kCut, 20s).run()) {
    REQUIRE(++num_frames < 1000);
  }
  CHECK(num_frames > 20);  // else there was nothing to cut
}

TEST_CASE("Mirror: its connection falls silent after some frames") {
  const test::LogLines quiet;
  std::size_t num_frames = 0;
  while (CutRun(num_frames, FrameRelay::Then::kHold, 400ms).run()) {
    REQUIRE((num_frames += 3) < 1000);
  }
  CHECK(num_frames > 20);
}

}  // namespace
}  // namespace ddprun::ha::testing
