// SPDX-License-Identifier: Apache-2.0
// Opens a pair's journal and keeps a new term in it, on a thread of its own: the disk may hang.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/ha/pair_rules.h"
#include "rendezvous/journal/content.h"
#include "rendezvous/journal/journal_file.h"

namespace ddprun::rendezvous {

struct KeptTerm {
  std::unique_ptr<journal::JournalFile> file;
  journal::Content content;  // of the file, without `batch`
  ha::TermPlan plan;
  journal::Batch batch;  // what begins the term; empty: it is in the file
  std::string trouble;   // why it is not kept, or there is no file
};

class TermKeeper {
 public:
  explicit TermKeeper(boost::asio::io_context& io);
  ~TermKeeper();  // a disk that hangs is left behind, with its thread; no call follows
  TermKeeper(const TermKeeper&) = delete;
  TermKeeper& operator=(const TermKeeper&) = delete;

  // `done` is called once, from the io context: `batch` is synced to the disk, or there is trouble.
  void keep(KeptTerm term, std::function<void(KeptTerm&)> done);
  // Likewise, with what `make`, which is called on that thread, has opened: the file and its
  // content, or the trouble.
  using File = std::unique_ptr<journal::JournalFile>;
  void open(std::function<File()> make, std::function<void(KeptTerm&)> done);

 private:
  void run(KeptTerm term, std::function<void(KeptTerm&)> work, std::function<void(KeptTerm&)> done);

  struct Life;
  const std::shared_ptr<Life> life_;  // second owners: the threads
};

}  // namespace ddprun::rendezvous
