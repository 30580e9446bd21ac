// SPDX-License-Identifier: Apache-2.0
// Actions that wait for the journal, and the order in which they are carried out.
#include "rendezvous/journal/journal.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rendezvous/daemon/shelf.h"
#include "tests/rendezvous/journal/posts.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using journal::JournalGate;
using Words = std::vector<std::string>;

const journal::Batch kNone;
const journal::Batch kRow{{"row", "1"}};

// The part of a hub: a shelf as its journal, shut at first, and the actions that were carried out.
class UnkeptRig {
 public:
  explicit UnkeptRig(bool is_shared = false)
      : journal_(std::make_unique<testing::ShelfWriter>(shelf), posts_.post(), options(is_shared)) {
    shelf->shut(true);
  }
  ~UnkeptRig() { shelf->shut(false); }

  void add(journal::Batch changes, const std::string& word) {
    unkept->add(
        std::move(changes), [this, word] { words.push_back(word); }, unkept);
  }
  void when_kept(const std::string& word) {
    unkept->when_kept([this, word] { words.push_back(word); });
  }
  // Opens the shelf. Returns when all earlier commits have been called back.
  void open() {
    shelf->shut(false);
    bool is_over = false;
    journal_.commit({{"last", "1"}}, [&] { is_over = true; });
    posts_.run_until([&] { return is_over; });
  }

  const std::shared_ptr<testing::Shelf> shelf = std::make_shared<testing::Shelf>();
  Words words;

 private:
  static journal::JournalOptions options(bool is_shared) {
    journal::JournalOptions options;
    options.is_shared = is_shared;
    options.commit_limit = std::chrono::minutes(1);
    return options;
  }
  test::Posts posts_;
  journal::Journal journal_;

 public:
  // Second owner: the callbacks of the journal.
  std::shared_ptr<JournalGate> unkept = std::make_shared<JournalGate>(&journal_);
};

TEST_CASE("JournalGate: nothing waits without a journal") {
  JournalGate unkept(nullptr);
  CHECK_FALSE(unkept.must_wait(kRow, true));
  bool is_done = false;
  unkept.when_kept([&] { is_done = true; });
  CHECK(is_done);
}

TEST_CASE("JournalGate: a change waits for the journal, and whatever comes later for the change") {
  UnkeptRig rig;
  CHECK_FALSE(rig.unkept->must_wait(kNone, true));
  CHECK(rig.unkept->must_wait(kRow, false));
  rig.unkept->add(
      kRow, [&] { rig.words.push_back("kept " + rig.shelf->content().at("row")); }, rig.unkept);
  CHECK(rig.unkept->must_wait(kNone, false));
  rig.when_kept("then");
  rig.add(kNone, "later");
  rig.when_kept("last");
  CHECK_FALSE(rig.unkept->empty());
  CHECK(rig.words.empty());
  rig.open();
  CHECK(rig.words == Words{"kept 1", "then", "later", "last"});
  CHECK(rig.unkept->empty());
  rig.when_kept("at once");
  CHECK(rig.words.back() == "at once");
}

TEST_CASE("JournalGate: an entry that is carried out finds itself gone from those that wait") {
  UnkeptRig rig;
  rig.unkept->add(
      kRow,
      [&] {
        CHECK(rig.unkept->empty());
        rig.add({{"row", "2"}}, "its own");
      },
      rig.unkept);
  rig.when_kept("then");
  rig.open();
  rig.open();
  CHECK(rig.words == Words{"then", "its own"});
}

TEST_CASE("JournalGate: nothing is said before the journal is asked if others may take over") {
  UnkeptRig rig(true);
  CHECK(rig.unkept->must_wait(kNone, true));
  CHECK_FALSE(rig.unkept->must_wait(kNone, false));
  rig.add(kNone, "said");
  CHECK(rig.words.empty());
  rig.open();
  CHECK(rig.words == Words{"said"});
}

TEST_CASE("JournalGate: nobody is called after stop(), whatever the journal says") {
  UnkeptRig rig;
  rig.add(kRow, "kept");
  rig.when_kept("then");
  rig.unkept->stop();
  rig.open();
  CHECK(rig.words.empty());
}

TEST_CASE("JournalGate: its owner lives until it is carried out, and no longer") {
  UnkeptRig rig;
  rig.add(kRow, "kept");
  const std::weak_ptr<JournalGate> owner = rig.unkept;
  rig.unkept.reset();
  CHECK_FALSE(owner.expired());
  rig.open();
  CHECK(rig.words == Words{"kept"});
  CHECK(owner.expired());
}

}  // namespace
}  // namespace ddprun::rendezvous
