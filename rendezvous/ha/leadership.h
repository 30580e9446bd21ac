// SPDX-License-Identifier: Apache-2.0
// Decides which of several ddprunds leads: the one whose lease in etcd has the leader's key.
// docs/internals/ha.md explains why two can't both act.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "rendezvous/ha/etcd_client.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row.h"

namespace ddprun::ha {

struct LeadershipOptions {
  EtcdOptions etcd;
  std::string prefix;             // of all keys: "/ddprun"
  std::chrono::seconds lease{3};  // without a renewal it ends after this time
  std::string name;               // HOST:PORT of this ddprund, told to the others while it leads
};

// A period in which one ddprund leads.
struct Term {
  std::int64_t epoch = 0;                        // larger than in every earlier term
  std::unique_ptr<journal::BatchWriter> writer;  // throws Deposed once another may lead
  journal::Content content;                      // rows of earlier terms
};

class Leadership {
 public:
  // Called from the I/O context. One `over` follows each `leads`, unless this object is destroyed.
  // After `over` nothing may be sent to agents.
  struct Handlers {
    std::function<void(Term)> leads;
    std::function<void(const std::string& why)> over;
    std::function<void(const std::string& leader)> stands_by;  // the leader's name, at each change
    std::function<void(const std::string& trouble)> etcd_is;   // empty: etcd answers again
  };

  // Tries to lead until destroyed, in a thread of its own.
  Leadership(boost::asio::io_context& io, LeadershipOptions options, Handlers handlers);
  // Gives the leadership up, so that another ddprund may lead at once. The term's writer must be
  // destroyed before.
  ~Leadership();

  // Ends the term of this epoch, followed by `over`; called when its writer was deposed. A later
  // term isn't affected.
  void resign(std::int64_t epoch, const std::string& why);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // shared with the thread and with posted calls
  std::thread thread_;
};

}  // namespace ddprun::ha
