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
constexpr milliseconds kFlushLimit{1'000};  // for a refusal
constexpr milliseconds kLook{100};          // for silence, and whether a disk's trouble is over
}  // namespace

MirrorServer::MirrorServer(boost::asio::io_context& io, MirrorServerOptions options,
                           Handlers handlers)
    : io_(io),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      watch_timer_(io),
      row_timer_(io) {}

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
  events.ended = [weak](Session session, const std::string& why, bool was_synced) {
    if (const auto self = weak.lock()) self->ended(session, why, was_synced);
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

void MirrorServer::stop() {
  journal_ = nullptr;
  handlers_ = {};
  watch_timer_.cancel();
  row_timer_.cancel();
  for (const auto& [number, newcomer] : std::exchange(newcomers_, {})) newcomer.frames->close();
  if (current_) current_->frames->close();
  current_.reset();
}

// ---- newcomers ----

void MirrorServer::take(const Frames& frames, std::shared_ptr<void> place) {
  if (journal_ == nullptr) return frames->close();
  const std::uint64_t number = next_newcomer_++;
  Newcomer& newcomer = newcomers_[number];
  newcomer.frames = frames;
  newcomer.place = std::move(place);
  newcomer.timer = std::make_unique<boost::asio::steady_timer>(io_, options_.hello_limit);
  const auto weak = weak_from_this();
  newcomer.timer->async_wait([weak, number](boost::system::error_code error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->drop(number, concat("no hello in ", self->options_.hello_limit.count(), " ms"));
  });
  frames->limit_messages(kMaxMirrorTextBytes);
  FrameStream::Handlers handlers;
  handlers.frame = [weak, number](std::string_view text) {
    if (const auto self = weak.lock()) self->said_hello(number, text);
  };
  handlers.ended = [weak, number](const std::string& why) {
    if (const auto self = weak.lock()) self->drop(number, why);
  };
  frames->start(std::move(handlers));
}

void MirrorServer::drop(std::uint64_t number, const std::string& why) {
  const auto dropped = newcomers_.extract(number);
  if (dropped.empty()) return;
  log_warning("closed the connection of a standby that has not said who it is: ", why);
  dropped.mapped().frames->close();
}

void MirrorServer::said_hello(std::uint64_t number, std::string_view text) {
  if (!newcomers_.contains(number)) return;
  mirror::Hello hello;
  try {
    const auto message = mirror::decode_standby_message(text);
    const auto* first = std::get_if<mirror::Hello>(&message);
    if (first == nullptr) throw Error(ErrorCode::kProtocol, "its first message is no hello");
    hello = *first;
  } catch (const Error& error) {
    return drop(number, error.what());
  }
  const Frames frames = newcomers_.extract(number).mapped().frames;
  const std::string name = one_line(hello.name);
  if (hello.version != kMirrorVersion) {
    return refuse(
        frames, name,
        concat("it speaks version ", hello.version, " of the mirror's protocol, and ",
               options_.name, " version ", kMirrorVersion, ": install the same ddprund on both"));
  }
  if (current_) {
    return refuse(frames, name, concat(current_->name, " mirrors ", options_.name, " already"));
  }
  if (link_->stage() != MirrorLink::Stage::kAlone) {
    return refuse(frames, name, concat(options_.name, " begins another term; come again"));
  }
  adopt(frames, name);
}

void MirrorServer::refuse(const Frames& frames, const std::string& name,
                          const std::string& reason) {
  const std::string line = concat("refused the standby ", name, ": ", reason);
  if (std::exchange(last_refusal_, line) != line) log_warning(line);
  frames->send(mirror::encode(mirror::LeaderMessage(mirror::Refused{reason})));
  frames->close_when_sent(kFlushLimit);
}

// ---- the standby ----

void MirrorServer::adopt(const Frames& frames, const std::string& name) {
  last_refusal_.clear();
  log_info(name, " begins to mirror this ddprund");
  current_ = std::make_unique<Current>();
  Current& current = *current_;
  current.frames = frames;
  current.name = name;
  current.last_heard = Clock::now();
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
  welcome.name = options_.name;
  welcome.boot = boot_id();
  frames->send(mirror::encode(mirror::LeaderMessage(welcome)));
  watch();
}

void MirrorServer::heard(Session session) {
  if (is_current(session)) current_->last_heard = Clock::now();
}

void MirrorServer::received(Session session, std::string_view text) {
  heard(session);
  try {
    const auto message = mirror::decode_standby_message(text);
    if (const auto* got = std::get_if<mirror::Got>(&message)) {
      link_->got(session, got->bytes);
    } else if (const auto* ack = std::get_if<mirror::Ack>(&message)) {
      link_->acked(session, ack->number);
    } else {
      throw Error(ErrorCode::kProtocol, "it says hello again");
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
        if (Clock::now() - self->current_->last_heard >= self->options_.silence_limit) {
          self->link_->end(session, concat("nothing was heard of it for ",
                                           self->options_.silence_limit.count(), " ms"));
        }
        self->watch();
      });
}

// From here on each batch goes to the standby first. What was decided on a disk that fails is not
// there yet: it comes with the first commit that works.
void MirrorServer::caught_up(Session session) {
  if (!is_current(session) || journal_ == nullptr) return;
  const auto weak = weak_from_this();
  if (journal_->trouble()) {
    row_timer_.expires_after(kLook);
    row_timer_.async_wait([weak, session](boost::system::error_code error) {
      const auto self = weak.lock();
      if (!error && self) self->caught_up(session);
    });
    return;
  }
  row_timer_.expires_after(options_.row_limit);
  row_timer_.async_wait([weak, session](boost::system::error_code error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->link_->end(session, "this ddprund's own journal can't be written");
  });
  has_row_ = true;
  journal_->share(true);
  journal_->commit({{kStandbyRow, encode_standby_row(current_->name)}}, [weak, session] {
    if (const auto self = weak.lock()) self->row_is_kept(session);
  });
}

void MirrorServer::row_is_kept(Session session) {
  if (!is_current(session) || journal_ == nullptr || !link_->sync(session)) return;
  row_timer_.cancel();
  current_->is_in_sync = true;
  current_->frames->send(mirror::encode(mirror::LeaderMessage(mirror::InSync{options_.term})));
  log_info(current_->name, " mirrors this ddprund");
  if (const auto mirrored = handlers_.mirrored) mirrored(current_->name);
}

void MirrorServer::ended(Session session, const std::string& why, bool was_synced) {
  if (!is_current(session) || journal_ == nullptr) return;
  LostStandby lost;
  lost.name = current_->name;
  lost.why = why;
  lost.was_synced = was_synced;
  current_->frames->close();
  current_.reset();
  watch_timer_.cancel();
  row_timer_.cancel();
  log_warning("the standby ", lost.name, " is lost: ", why,
              was_synced ? "" : "; it was not in sync yet");
  if (was_synced) {
    journal_->commit({}, [] {});  // and is told that it is deposed
  } else if (std::exchange(has_row_, false)) {
    journal_->share(false);
    journal_->commit({{kStandbyRow, std::nullopt}}, [] {});
  }
  if (const auto handler = handlers_.lost) handler(lost);
}

// ---- what is told of it ----

std::optional<MirrorServer::Standby> MirrorServer::standby() const {
  if (!current_) return std::nullopt;
  Standby standby;
  standby.name = current_->name;
  standby.is_in_sync = current_->is_in_sync;
  return standby;
}

std::optional<journal::JournalTrouble> MirrorServer::file_trouble() const {
  const auto trouble = link_ ? link_->file_trouble() : std::nullopt;
  if (!trouble) return std::nullopt;
  return journal::JournalTrouble{trouble->first, trouble->second};
}

journal::Batch MirrorServer::owed() const { return link_ ? link_->owed() : journal::Batch(); }

}  // namespace ddprun::ha
