// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_server.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "common/boot_id.h"
#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/mirror_codec.h"

namespace ddprun::ha {

using membership::FrameStream;
using std::chrono::milliseconds;

namespace {
constexpr milliseconds kFlushLimit{1'000};   // for the last words
constexpr milliseconds kHandOverLimit{500};  // for a standby to take them
constexpr milliseconds kLook{100};           // for silence, and a disk that hangs
constexpr char kOwnTrouble[] = "this ddprund's own journal can't be written";
}  // namespace

MirrorServer::MirrorServer(boost::asio::io_context& io, MirrorServerOptions options,
                           Handlers handlers)
    : io_(io),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      line_(options_.line),
      watch_timer_(io),
      row_timer_(io) {}

MirrorServer::~MirrorServer() { close(); }

std::unique_ptr<journal::BatchWriter> MirrorServer::make_writer(
    std::unique_ptr<journal::RowFile> file) {
  DDPRUN_CHECK(!link_);
  const auto weak = weak_from_this();
  MirrorLink::Events events;
  events.send = [weak](Session session, std::string frame) {
    const auto self = weak.lock();
    if (self && self->is_current(session)) self->current_->frames->send_binary(std::move(frame));
  };
  events.caught_up = [weak](Session session) {
    if (const auto self = weak.lock()) self->caught_up(session);
  };
  events.ended = [weak](Session session, const MirrorEnd& end) {
    if (const auto self = weak.lock()) self->ended(session, end);
  };
  events.say = [](LogLevel level, const std::string& text) { log_message(level, text); };
  link_ = std::make_shared<MirrorLink>(
      [&io = io_](std::function<void()> call) { boost::asio::post(io, std::move(call)); },
      std::move(events));
  return std::make_unique<MirrorWriter>(std::move(file), link_, options_.writer);
}

void MirrorServer::start(journal::Journal& journal) {
  DDPRUN_CHECK(link_ && journal_ == nullptr);
  journal_ = &journal;
}

// A journal that was not told to anybody as shared has nobody who takes it over: it ends as one
// that was alone, and what waits is written.
void MirrorServer::stop() {
  if (is_handed_over_) return;
  handlers_ = {};
  watch_timer_.cancel();
  row_timer_.cancel();
  journal::Journal* const journal = std::exchange(journal_, nullptr);
  if (!current_ || current_->is_in_sync) return;
  link_->end(current_->session, "this ddprund's jobs end");
  if (journal != nullptr) journal->share(false);
  close();
}

void MirrorServer::close() {
  if (current_) current_->frames->close();
  current_.reset();
}

// The standby ends the connection when it has heard it.
void MirrorServer::hand_over(std::function<void()> done) {
  DDPRUN_CHECK(!is_handed_over_);
  stop();
  const bool is_there = current_ && current_->is_in_sync && !current_->frames->is_closed();
  if (!is_there) return boost::asio::post(io_, std::move(done));
  log_info("tells ", current_->name, " that the jobs are its own now");
  const auto weak = weak_from_this();
  is_handed_over_ = std::move(done);
  const auto end = [weak] {
    const auto self = weak.lock();
    if (!self) return;
    self->row_timer_.cancel();
    self->close();
    if (const auto call = std::exchange(self->is_handed_over_, nullptr)) call();
  };
  FrameStream::Handlers handlers;
  handlers.frame = [](std::string_view) {};
  handlers.ended = [end](const std::string&) { end(); };
  current_->frames->start(std::move(handlers));
  link_->end(current_->session, "it has the jobs now");  // whatever is committed from now on
  current_->frames->send(mirror::encode(mirror::CalledMessage(mirror::Yours{})));
  row_timer_.expires_after(kHandOverLimit);
  row_timer_.async_wait([end](boost::system::error_code error) {
    if (!error) end();
  });
}

// ---- the standby ----

void MirrorServer::adopt(const Frames& frames, const PairState& theirs) {
  const std::string& name = theirs.name;
  if (journal_ == nullptr) return refuse(frames, name, concat(options_.name, " stands by"));
  if (current_) {
    return refuse(frames, name, concat(current_->name, " mirrors ", options_.name, " already"));
  }
  if (link_->stage() != MirrorLink::Stage::kAlone) {
    return refuse(frames, name, concat(options_.name, " begins another term; come again"));
  }
  if (patience_->wait(Clock::now())) {
    return refuse(frames, name, "it was lost while it was in sync; it may come again soon");
  }
  if (const auto trouble = journal_->trouble()) {
    return refuse(frames, name, concat(kOwnTrouble, ": ", trouble->what));
  }
  last_refusal_.clear();
  log_info(name, " begins to mirror this ddprund");
  current_ = std::make_unique<Current>();
  Current& current = *current_;
  current.frames = frames;
  current.name = name;
  current.last_heard = Clock::now();
  current.given_up = theirs.given_up;
  FrameStream::Handlers handlers;
  const auto weak = weak_from_this();
  const Session session = current.session = link_->open(name);
  handlers.frame = [weak, session](std::string_view text) {
    if (const auto self = weak.lock()) self->received(session, text);
  };
  handlers.ping = [weak, session](std::string_view) {
    if (const auto self = weak.lock()) self->heard(session);
  };
  handlers.ended = [link = link_, session](const std::string& why) { link->end(session, why); };
  frames->start(std::move(handlers));
  mirror::Welcome welcome;
  welcome.boot = boot_id();
  frames->send(mirror::encode(mirror::CalledMessage(welcome)));
  watch();
}

void MirrorServer::refuse(const Frames& frames, const std::string& name,
                          const std::string& reason) {
  const std::string line = concat("refused the standby ", name, ": ", reason);
  if (std::exchange(last_refusal_, line) != line) log_warning(line);
  frames->send(mirror::encode(mirror::CalledMessage(mirror::Refused{reason})));
  frames->close_when_sent(kFlushLimit);
}

void MirrorServer::heard(Session session) {
  if (is_current(session)) current_->last_heard = Clock::now();
}

void MirrorServer::received(Session session, std::string_view text) {
  heard(session);
  try {
    const auto message = mirror::decode_caller_message(text);
    if (const auto* got = std::get_if<mirror::Got>(&message)) {
      link_->got(session, got->bytes);
    } else if (const auto* ack = std::get_if<mirror::Ack>(&message)) {
      link_->acked(session, ack->number);
    } else if (std::holds_alternative<mirror::Leaves>(message)) {
      link_->leave(session, "it leaves");
    } else {
      throw Error(ErrorCode::kProtocol, "it says again who it is");
    }
  } catch (const Error& error) {
    link_->end(session, error.what());
  }
}

void MirrorServer::watch() {
  watch_timer_.expires_after(kLook);
  watch_timer_.async_wait(
      [weak = weak_from_this(), session = current_->session](boost::system::error_code error) {
        const auto self = weak.lock();
        if (error || !self || !self->is_current(session)) return;
        const Clock::time_point now = Clock::now();
        if (now - self->current_->last_heard >= self->options_.silence_limit) {
          self->link_->end(session, concat("nothing was heard of it for ",
                                           self->options_.silence_limit.count(), " ms"));
        }
        const auto writes_since = self->link_->writes_since();
        if (writes_since && now - *writes_since >= self->options_.file_limit) {
          self->link_->end_by_own_disk(concat(kOwnTrouble, ": the disk has not answered for ",
                                              self->options_.file_limit.count(), " ms"));
        }
        self->watch();
      });
}

// From here on each batch goes to the standby first.
void MirrorServer::caught_up(Session session) {
  if (!is_current(session) || journal_ == nullptr) return;
  if (journal_->trouble()) return link_->end_by_own_disk(kOwnTrouble);
  const auto weak = weak_from_this();
  row_timer_.expires_after(options_.row_limit);
  row_timer_.async_wait([weak, session](boost::system::error_code error) {
    const auto self = weak.lock();
    if (!error && self && self->is_current(session)) self->link_->end_by_own_disk(kOwnTrouble);
  });
  has_row_ = true;
  journal_->share(true);
  current_->line = line_with(line_, current_->given_up);
  TermRow row;
  row.term = options_.term;
  row.line = current_->line;
  journal_->commit(standby_came(current_->name, row), [weak, session] {
    if (const auto self = weak.lock()) self->row_is_kept(session);
  });
}

void MirrorServer::row_is_kept(Session session) {
  if (!is_current(session) || journal_ == nullptr || !link_->sync(session)) return;
  row_timer_.cancel();
  current_->is_in_sync = true;
  patience_->is_in_sync(Clock::now());
  const mirror::CalledMessage in_sync = mirror::InSync{options_.term, current_->line};
  current_->frames->send(mirror::encode(in_sync));
  log_info(current_->name, " mirrors this ddprund");
  if (const auto mirrored = handlers_.mirrored) mirrored(current_->name);
}

void MirrorServer::ended(Session session, const MirrorEnd& end) {
  if (!is_current(session) || journal_ == nullptr) return;
  LostStandby lost;
  lost.name = current_->name;
  lost.why = end.why;
  lost.was_synced = end.was_synced;
  lost.own_disk = end.own_disk;
  const Frames frames = current_->frames;
  current_.reset();
  watch_timer_.cancel();
  row_timer_.cancel();
  if (end.was_synced && end.own_disk) {
    log_error(end.why, "; ", lost.name, " goes on with the jobs");
    frames->send(mirror::encode(mirror::CalledMessage(mirror::Yours{})));
    frames->close_when_sent(kFlushLimit);
  } else {
    log_warning("the standby ", lost.name, " is lost: ", end.why,
                end.was_synced ? "" : "; this ddprund goes on alone");
    frames->close();
  }
  if (end.was_synced && !end.own_disk) patience_->was_lost(Clock::now());
  if (end.was_synced) {
    journal_->commit({}, [] {});  // and is told that it is deposed
  } else if (std::exchange(has_row_, false)) {
    journal_->share(false);
    journal_->commit(standby_left(), [] {});
  }
  if (const auto handler = handlers_.lost) handler(lost);
}

}  // namespace ddprun::ha
