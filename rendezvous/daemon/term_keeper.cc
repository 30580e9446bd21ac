// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/term_keeper.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <mutex>
#include <utility>

#include "common/quiet_thread.h"

namespace ddprun::rendezvous {

struct TermKeeper::Life {
  std::mutex mutex;
  boost::asio::io_context* io = nullptr;  // null: the TermKeeper has gone
};

TermKeeper::TermKeeper(boost::asio::io_context& io) : life_(std::make_shared<Life>()) {
  life_->io = &io;
}

TermKeeper::~TermKeeper() {
  const std::lock_guard lock(life_->mutex);
  life_->io = nullptr;
}

void TermKeeper::keep(KeptTerm term, std::function<void(KeptTerm&)> done) {
  run(
      std::move(term), [](KeptTerm& its) { its.file->commit(its.batch); }, std::move(done));
}

void TermKeeper::open(std::function<File()> make, std::function<void(KeptTerm&)> done) {
  const auto work = [make = std::move(make)](KeptTerm& its) {
    its.file = make();
    its.content = its.file->load();
  };
  run({}, work, std::move(done));
}

void TermKeeper::run(KeptTerm term, std::function<void(KeptTerm&)> work,
                     std::function<void(KeptTerm&)> done) {
  const auto kept = std::make_shared<KeptTerm>(std::move(term));
  start_quiet_thread("ddprund-term", [kept, work = std::move(work), done = std::move(done),
                                      life = life_] {
    try {
      work(*kept);
    } catch (const std::exception& error) {
      kept->trouble = error.what();
    }
    const std::lock_guard lock(life->mutex);
    if (life->io == nullptr) return;
    boost::asio::post(*life->io, [kept, done, life] {
      if (life->io != nullptr) done(*kept);  // written by this thread alone
    });
  }).detach();
}

}  // namespace ddprun::rendezvous
