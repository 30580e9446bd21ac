// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/leadership.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "rendezvous/ha/etcd_journal.h"

namespace ddprun::ha {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {
constexpr std::chrono::milliseconds kRetry{200};  // if etcd does not answer
constexpr std::chrono::milliseconds kAfterVainTerm{1'000};
constexpr std::chrono::milliseconds kGiveUpLimit{1'000};
constexpr std::chrono::milliseconds kRenewalRetry{50};
constexpr int kRenewalsPerLease = 3;

// A renewal has time for two attempts before the lease ends, each at two endpoints or more.
EtcdOptions hurried(EtcdOptions etcd, std::chrono::milliseconds lease) {
  etcd.call_limit = lease / kRenewalsPerLease;
  etcd.request_limit = std::min(etcd.request_limit, etcd.call_limit / 2);
  return etcd;
}

// Returns the name if it is an endpoint, fit for an HTTP header; else "".
std::string checked_name(const std::string& name) {
  const auto endpoint = name.size() < 512 ? parse_endpoint(name, 0) : std::nullopt;
  return endpoint ? to_string(*endpoint) : std::string();
}
}  // namespace

class Leadership::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, LeadershipOptions options, Handlers handlers)
      : io_(io),
        options_(std::move(options)),
        key_(leader_key(options_.prefix)),
        handlers_(std::move(handlers)),
        client_(hurried(options_.etcd, options_.lease)) {}

  void run() {
    while (!wait(0ms)) {
      try {
        const std::optional<KeyValue> leader = client_.get(key_);
        say_well();
        if (leader) {
          await_end_of(*leader);
        } else if (await_io()) {
          if (const auto won = campaign()) hold(*won);
        }
      } catch (const std::exception& error) {
        if (wait(0ms)) return;
        say_trouble(error.what());
        wait(kRetry);
      }
    }
  }

  void resign(std::int64_t epoch, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (epoch != epoch_ || !ended_.empty()) return;
    ended_ = why;
    wakes_.notify_all();
  }

  void stop() {
    handlers_ = {};
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wakes_.notify_all();
    client_.cancel();
  }

 private:
  struct Lease {
    std::int64_t id = 0;
    Clock::time_point end;  // by our clock, counted from before etcd's
  };
  // The leadership that this process has won.
  struct Won {
    Lease lease;
    std::int64_t epoch = 0;  // the key's create_revision
  };

  void await_end_of(const KeyValue& leader) {
    if (leader.value != std::exchange(told_, leader.value)) {
      tell([name = checked_name(leader.value)](Handlers& handlers) { handlers.stands_by(name); });
      if (leader.lease == 0) {
        tell([key = key_](Handlers&) {
          log_error("etcd's key ", key,
                    " has no lease: no ddprund wrote it, and none can lead while it is there; "
                    "`etcdctl del ",
                    key, "` ends that");
        });
      }
    }
    // A member that is down is silent, just like one without news, so the wait is short.
    client_.await_erased(key_, leader.mod_revision,
                         Deadline::after(options_.lease / kRenewalsPerLease));
  }

  std::optional<Won> campaign() {
    Won won;
    won.lease.end = Clock::now() + options_.lease;
    won.lease.id = client_.grant_lease(options_.lease);
    TxnResult result;
    try {
      result = client_.change_if({{.key = key_, .create_revision = 0}},
                                 {{key_, options_.name, won.lease.id}});
    } catch (...) {
      give_up(won.lease.id);  // if the key was written, nobody could lead until the lease's end
      throw;
    }
    if (result.held) {
      won.epoch = result.revision;
      return won;
    }
    const auto& leader = result.found.at(0);
    if (leader && leader->lease == won.lease.id) {  // the answer of this attempt was lost
      won.epoch = leader->create_revision;
      return won;
    }
    client_.revoke(won.lease.id);
    return std::nullopt;
  }

  // Holds the leadership for one term. The lease is renewed while the earlier terms' rows are read,
  // which may take long.
  void hold(Won won) {
    told_.clear();
    {
      const std::lock_guard lock(mutex_);
      ended_.clear();
      epoch_ = 0;
    }
    auto writer = std::make_unique<EtcdJournal>(std::make_unique<EtcdClient>(options_.etcd),
                                                concat("etcd's ", options_.prefix), options_.prefix,
                                                won.epoch);
    EtcdJournal& reading = *writer;
    std::mutex handed_over;  // once it is unlocked, `reading` may be destroyed
    bool has_read = false;
    std::thread reader = start_quiet_thread("etcd-load", [&] {
      try {
        Term term;
        term.epoch = won.epoch;
        term.content = reading.load();
        const std::lock_guard lock(handed_over);
        has_read = true;
        term.writer = std::move(writer);
        const std::lock_guard also(mutex_);
        if (!ended_.empty() || stopping_) return;
        epoch_ = term.epoch;
        tell([term = std::move(term)](Handlers& handlers) mutable {
          handlers.leads(std::move(term));
        });
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        if (ended_.empty()) ended_ = concat("can't read what earlier leaders left: ", error.what());
        wakes_.notify_all();
      }
    });
    const std::string why = renew_until_over(won);
    {
      const std::lock_guard lock(handed_over);
      if (!has_read) reading.cancel();
    }
    reader.join();
    const bool announced = epoch_ != 0;
    if (announced) {
      tell([why](Handlers& handlers) { handlers.over(why); });
    } else if (!why.empty()) {
      if (why != std::exchange(vain_, why)) {
        tell([why](Handlers&) { log_error("could lead and doesn't: ", why); });
      }
    }
    give_up(won.lease.id);
    if (!announced) wait(kAfterVainTerm);  // another ddprund may succeed
  }

  // Renews the lease until the term is over. Returns why it is over; empty: this object is being
  // destroyed.
  std::string renew_until_over(Won& won) {
    Lease& lease = won.lease;
    Clock::time_point next = lease.end - options_.lease + options_.lease / kRenewalsPerLease;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        wakes_.wait_until(lock, std::min(next, lease.end),
                          [this] { return stopping_ || !ended_.empty(); });
        if (stopping_) return {};
        if (!ended_.empty()) return ended_;
      }
      const Clock::time_point sent = Clock::now();
      const auto over = [&](const std::string& why) {
        const std::lock_guard lock(mutex_);
        return ended_ = why;
      };
      if (sent >= lease.end) {
        return over(concat("etcd has not answered for ", options_.lease.count(), " s, its lease"));
      }
      if (!has_io_beaten()) {
        return over(concat("its own event loop has not run for ", options_.lease.count(), " s"));
      }
      try {
        // A person may erase the key. Then another ddprund leads, although the lease lives on.
        const std::optional<KeyValue> leader = client_.get(key_, Deadline(lease.end));
        if (!leader || leader->create_revision != won.epoch) {
          return over(concat("its key ", key_, " in etcd is gone"));
        }
        if (!client_.keep_alive(lease.id, Deadline(lease.end))) {
          return over("etcd has ended its lease");
        }
        lease.end = sent + options_.lease;
        next = sent + options_.lease / kRenewalsPerLease;
        say_well();
      } catch (const std::exception& error) {
        say_trouble(error.what());
        next = Clock::now() + kRenewalRetry;
      }
    }
  }

  // Revokes the lease, so that others needn't wait for its end. It uses a new client, since
  // `client_` may be cancelled.
  void give_up(std::int64_t lease) {
    EtcdOptions etcd = options_.etcd;
    etcd.call_limit = kGiveUpLimit;
    try {
      EtcdClient(std::move(etcd)).revoke(lease);
    } catch (const std::exception&) {  // the lease ends by itself
    }
  }

  void say_trouble(const std::string& what) {
    if (std::exchange(in_trouble_, true)) return;
    tell([what](Handlers& handlers) {
      log_warning(what, "; it is asked again and again");
      if (handlers.etcd_is) handlers.etcd_is(what);
    });
  }

  void say_well() {
    if (!std::exchange(in_trouble_, false)) return;
    tell([](Handlers& handlers) {
      log_info("etcd answers again");
      if (handlers.etcd_is) handlers.etcd_is("");
    });
  }

  // Returns true if this object is being destroyed.
  bool wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return wakes_.wait_for(lock, time, [this] { return stopping_; });
  }

  // Returns false if the I/O thread has not run for a lease's time: then no agent is served, and
  // another ddprund should lead. Asks the thread for the next beat.
  bool has_io_beaten() {
    const std::lock_guard lock(mutex_);
    if (beat_asked_at_) return Clock::now() - *beat_asked_at_ < options_.lease;
    ask_io();
    return true;
  }

  // Waits until the I/O thread runs: a process that can't serve must not try to lead. Returns false
  // if this object is being destroyed.
  bool await_io() {
    std::unique_lock lock(mutex_);
    if (!beat_asked_at_) ask_io();
    wakes_.wait(lock, [this] { return stopping_ || !beat_asked_at_; });
    return !stopping_;
  }

  // Called with mutex_ locked.
  void ask_io() {
    beat_asked_at_ = Clock::now();
    asio::post(io_, [self = shared_from_this()] {
      const std::lock_guard lock(self->mutex_);
      self->beat_asked_at_.reset();
      self->wakes_.notify_all();
    });
  }

  template <typename Call>
  void tell(Call call) {
    asio::post(io_, [self = shared_from_this(), call = std::move(call)]() mutable {
      if (self->handlers_.leads) call(self->handlers_);
    });
  }

  asio::io_context& io_;
  const LeadershipOptions options_;
  const std::string key_;
  Handlers handlers_;        // I/O thread only; empty: no handler is called any more
  EtcdClient client_;        // thread only, except for cancel()
  std::string told_;         // thread only: the last leader that `stands_by` got
  std::string vain_;         // thread only: the last logged reason why it could not lead
  bool in_trouble_ = false;  // thread only: etcd did not answer

  std::mutex mutex_;
  std::condition_variable wakes_;
  // Guarded by mutex_.
  bool stopping_ = false;
  std::string ended_;                               // why the term must end; empty: it goes on
  std::int64_t epoch_ = 0;                          // this term's, once `leads` was posted; else 0
  std::optional<Clock::time_point> beat_asked_at_;  // set: the I/O thread has not run since then
};

Leadership::Leadership(asio::io_context& io, LeadershipOptions options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(handlers))),
      thread_(start_quiet_thread("leadership", [impl = impl_] { impl->run(); })) {}

Leadership::~Leadership() {
  impl_->stop();
  thread_.join();
}

void Leadership::resign(std::int64_t epoch, const std::string& why) { impl_->resign(epoch, why); }

}  // namespace ddprun::ha
