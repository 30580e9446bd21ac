// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "agent/output/last_exception.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/regular_file.h"
#include "common/text.h"
#include "common/utf8.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kCutMark = " …";

constexpr std::size_t kReadBytes = 64 * 1024;

// A large pipe means fewer switches between worker and reader. It takes memory only while it is
// full.
constexpr int kPipeBytes = 256 * 1024;

// The other pipes get their turn after so many reads from one.
constexpr int kReadsPerWakeup = 4;

// The limit for reading after a worker's end. A pipe holds less than this, so more bytes come from
// a living process.
constexpr std::size_t kMaxDrainBytes = 1 << 20;

// The last lines of a file that the worker wrote itself are searched in this many bytes of its end.
constexpr off_t kTailBytes = 64 * 1024;

// Shared by all pipes: only the io thread reads, one pipe at a time.
std::array<char, kReadBytes>& read_buffer() {
  static std::array<char, kReadBytes> buffer;
  return buffer;
}

// Returns the end of the file; empty if it can't be read. Somebody may have put a FIFO in its
// place, or a link: a worker that runs as another user could have a file of this user shown.
std::string end_of_file(const std::string& path) {
  const RegularFile file = open_regular_file(path, O_NOFOLLOW);
  if (!file.fd) return "";
  const off_t end = file.info.st_size;
  std::string text(static_cast<std::size_t>(std::clamp<off_t>(end, 0, kTailBytes)), '\0');
  const ssize_t size =
      ::pread(file.fd.get(), text.data(), text.size(), end - static_cast<off_t>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

const char* name_of(OutputStream stream) {
  return stream == OutputStream::kStdout ? "stdout" : "stderr";
}

std::size_t index_of(OutputStream stream) { return stream == OutputStream::kStdout ? 0 : 1; }

}  // namespace

std::string printable_line(std::string_view line) {
  const bool is_cut = line.size() > OutputTail::kMaxLineBytes;
  if (is_cut) line = line.substr(0, OutputTail::kMaxLineBytes);
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const auto carriage_return = line.rfind('\r');
  if (carriage_return != std::string_view::npos) line.remove_prefix(carriage_return + 1);
  std::string out;
  while (!line.empty()) {
    std::size_t used = escape_length(line, 0);
    if (used == 0) {
      used = utf8_length(line);
      const unsigned char first = static_cast<unsigned char>(line[0]);
      const bool is_control = (first < 0x20 && first != '\t') || first == 0x7F ||
                              (used > 1 && is_hidden(utf8_code(line)));
      if (used == 0 && is_cut && line.size() < 4) break;  // the character was cut by the limit
      out.append(used == 0 || is_control ? kReplacementCharacter : line.substr(0, used));
      used = std::max<std::size_t>(used, 1);
    }
    line.remove_prefix(used);
  }
  if (is_cut) out.append(kCutMark);
  return out;
}

// Recognises the lines that LibTorch's exceptions print by the dozen after the line with the error.
bool OutputTail::is_stack_frame(std::string_view line) {
  constexpr std::string_view kBegin = "frame #";
  return line.starts_with(kBegin) && line.size() > kBegin.size() && line[kBegin.size()] >= '0' &&
         line[kBegin.size()] <= '9';
}

// Keeps one byte more than is shown, so that a cut line is recognised.
void OutputTail::append_bounded(std::string& to, std::string_view bytes) {
  const std::size_t room = kMaxLineBytes + 1 - std::min(to.size(), kMaxLineBytes + 1);
  to.append(bytes.substr(0, room));
}

void OutputTail::add_line(std::string_view first, std::string_view rest) {
  num_frames_ = is_stack_frame(first.empty() ? rest : first) ? num_frames_ + 1 : 0;
  if (num_frames_ > 2) --num_added_;
  std::string& slot = ring_[num_added_++ % kNumLines];
  if (num_frames_ > 1) {
    slot = concat("(frames of the stack left out: ", num_frames_ - 1, ")");
    return;
  }
  slot.clear();
  append_bounded(slot, first);
  append_bounded(slot, rest);
}

void OutputTail::feed(std::size_t stream, std::string_view bytes) {
  std::string& partial = partial_[stream];
  // Finds where the last lines begin: in a large batch only they matter.
  std::size_t begin = bytes.size();
  std::size_t newlines = 0;
  while (begin > 0) {
    const auto newline = bytes.rfind('\n', begin - 1);
    if (newline == std::string_view::npos) {
      begin = 0;
      break;
    }
    begin = newline;
    if (!is_stack_frame(bytes.substr(newline + 1)) && ++newlines > kNumLines) {
      partial.clear();
      bytes.remove_prefix(newline + 1);
      break;
    }
  }
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    if (newline == std::string_view::npos) break;
    add_line(partial, bytes.substr(0, newline));
    partial.clear();
    bytes.remove_prefix(newline + 1);
  }
  // Removes a progress bar's old texts, which would fill the limit.
  const auto carriage_return = bytes.rfind('\r');
  if (carriage_return != std::string_view::npos && carriage_return + 1 < bytes.size()) {
    partial.clear();
    bytes.remove_prefix(carriage_return + 1);
  }
  append_bounded(partial, bytes);
}

std::vector<std::string> OutputTail::lines(std::size_t most) const {
  std::vector<std::string> result;
  const std::size_t kept = std::min({num_added_, kNumLines, most});
  for (std::size_t i = num_added_ - kept; i < num_added_; ++i) {
    result.push_back(printable_line(ring_[i % kNumLines]));
  }
  for (const std::string& partial : partial_) {
    if (!partial.empty()) result.push_back(printable_line(partial));
  }
  if (result.size() > most) {
    result.erase(result.begin(),
                 result.begin() + static_cast<std::ptrdiff_t>(result.size() - most));
  }
  return result;
}

std::vector<std::string> WorkerOutput::hidden_traceback() const {
  std::vector<std::string> traceback = last_traceback(tail_.lines(OutputTail::kNumLines));
  if (traceback.empty()) return {};
  const std::vector<std::string> shown = last_lines();
  const bool is_shown = std::find(shown.begin(), shown.end(), traceback.back()) != shown.end();
  return is_shown ? std::vector<std::string>() : traceback;
}

WorkerOutput::WorkerOutput(boost::asio::io_context& io, Console& console,
                           const OutputOptions& options, bool several_workers,
                           std::shared_ptr<RoundLogs> logs, WorkerPlace place)
    : io_(io),
      console_(console),
      options_(options),
      several_workers_(several_workers),
      logs_(std::move(logs)),
      place_(place) {}

// A worker without a known place gets its files later, with its place.
OutputScene WorkerOutput::scene() const {
  return {.several_workers = several_workers_,
          .has_files = place_.global_rank < 0 ? options_.has_files() : logs_ != nullptr,
          .stdout_is_terminal = console_.is_terminal(OutputStream::kStdout),
          .stderr_is_terminal = console_.is_terminal(OutputStream::kStderr),
          .same_file = console_.same_file()};
}

WorkerStreams WorkerOutput::open() {
  WorkerStreams streams;
  const WorkerPlan plan = plan_output(options_, scene(), place_.local_rank, place_.global_rank);
  if (plan.one_pipe) {
    streams.stderr_fd = open_pipe(OutputStream::kStderr, plan.err);
    streams.stdout_fd.reset(::fcntl(streams.stderr_fd.get(), F_DUPFD_CLOEXEC, 3));
    if (!streams.stdout_fd) throw_system_error("duplicating a pipe", errno);
  } else {
    streams.stdout_fd = open_stream(OutputStream::kStdout);
    streams.stderr_fd = open_stream(OutputStream::kStderr);
  }
  return streams;
}

UniqueFd WorkerOutput::open_stream(OutputStream stream) {
  StreamPlan plan =
      plan_output(options_, scene(), place_.local_rank, place_.global_rank).of(stream);
  if (plan.file == FileWay::kDirect) {
    if (UniqueFd file = logs_->direct(place_.local_rank, stream)) {
      kept_[index_of(stream)] = Kept::kInFile;
      return file;
    }
    plan.file = FileWay::kCopied;  // tries again with every write, and counts what is lost
  }
  if (plan.file == FileWay::kCopied && !logs_) {  // a spare's worker gets its files with its place
    plan.console = ConsoleWay::kLines;
    plan.prefix_template = options_.prefix_template.value_or(LinePrefix::kRankTemplate);
  }
  if (plan.is_read()) return open_pipe(stream, plan);
  kept_[index_of(stream)] =
      plan.console == ConsoleWay::kInherit ? Kept::kByConsole : Kept::kNowhere;
  if (plan.console == ConsoleWay::kInherit) return {};
  UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!nowhere) throw_system_error("/dev/null", errno);
  return nowhere;
}

UniqueFd WorkerOutput::open_pipe(OutputStream stream, const StreamPlan& plan) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("pipe for a worker's output", errno);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);  // this end only; the write end stays blocking
  // If the user's limit forbids it, the size stays.
  ::fcntl(read_end.get(), F_SETPIPE_SZ, kPipeBytes);
  auto pipe = std::make_unique<Pipe>(io_, stream, plan);
  boost::system::error_code error;
  pipe->read_end.assign(read_end.get(), error);
  if (error) throw_system_error("watching a worker's output", error.value());
  read_end.release();
  open_files(*pipe);
  set_prefix(*pipe, std::time(nullptr));
  pipes_.push_back(std::move(pipe));
  wait_readable(pipes_.size() - 1);
  return write_end;
}

void WorkerOutput::open_files(Pipe& pipe) {
  if (!logs_) return;
  if (pipe.plan.file == FileWay::kCopied) {
    pipe.file = logs_->copied(place_.local_rank, pipe.stream);
  }
  if (pipe.plan.filtered) pipe.filter.emplace(options_.filters(pipe.stream));
}

void WorkerOutput::set_prefix(Pipe& pipe, std::time_t now) {
  const PrefixValues values{options_.role_name, host_name(), place_.local_rank, place_.global_rank,
                            place_.node_rank};
  pipe.prefix_time = now;
  pipe.plain_prefix = pipe.prefix.text(values, now);
  pipe.source.prefix = console_.has_colours(pipe.stream)
                           ? LinePrefix::coloured(pipe.plain_prefix, place_.global_rank)
                           : pipe.plain_prefix;
  pipe.source.redraws = place_.global_rank == options_.stdin_rank.value_or(0);
}

void WorkerOutput::set_place(WorkerPlace place, std::shared_ptr<RoundLogs> logs) {
  place_ = place;
  logs_ = std::move(logs);
  const WorkerPlan now = plan_output(options_, scene(), place_.local_rank, place_.global_rank);
  for (const auto& pipe : pipes_) {
    if (!pipe) continue;
    const StreamPlan& plan = now.of(pipe->stream);
    if (plan.console != ConsoleWay::kInherit) pipe->plan.console = plan.console;
    pipe->plan.filtered = plan.filtered;
    if (!plan.prefix_template.empty()) pipe->prefix = LinePrefix(plan.prefix_template);
    open_files(*pipe);
    set_prefix(*pipe, std::time(nullptr));
  }
}

void WorkerOutput::wait_readable(std::size_t index) {
  when_readable(pipes_[index]->read_end, [self = shared_from_this(), index] {
    if (self->pipes_[index]) self->on_readable(index);
  });
}

bool WorkerOutput::console_must_wait(const Pipe& pipe) const {
  return (pipe.plan.console == ConsoleWay::kLines || pipe.plan.console == ConsoleWay::kRaw) &&
         console_.must_wait(pipe.stream, pipe.source);
}

// Returns a full file of the pipe, which reading must wait for; null: there is none.
LogWriter::File* WorkerOutput::full_file(const Pipe& pipe) const {
  if (pipe.file && pipe.file->is_full()) return pipe.file.get();
  LogWriter::File* filtered = pipe.filter ? logs_->filtered(pipe.stream) : nullptr;
  return filtered && filtered->is_full() ? filtered : nullptr;
}

void WorkerOutput::on_readable(std::size_t index) {
  const OutputStream stream = pipes_[index]->stream;
  ReadResult result = ReadResult::kDrained;
  for (int i = 0; i < kReadsPerWakeup && !must_wait(*pipes_[index]); ++i) {
    result = read_once(index);
    if (result != ReadResult::kMore) break;
  }
  if (result == ReadResult::kEnded) end_pipe(index);
  console_.flush(stream);
  console_.log_writer().flush();
  if (!pipes_[index]) return;
  const auto again = [weak = weak_from_this(), index] {
    const auto self = weak.lock();
    if (self && self->pipes_[index]) self->on_readable(index);
  };
  if (console_must_wait(*pipes_[index])) return console_.when_room(stream, again);
  if (LogWriter::File* file = full_file(*pipes_[index])) return file->when_room(again);
  wait_readable(index);
}

WorkerOutput::ReadResult WorkerOutput::read_once(std::size_t index) {
  Pipe& pipe = *pipes_[index];
  auto& buffer = read_buffer();
  ssize_t size;
  do {
    size = ::read(pipe.read_end.native_handle(), buffer.data(), buffer.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0) return ReadResult::kDrained;
  if (size == 0) return ReadResult::kEnded;
  hand_on(pipe, {buffer.data(), static_cast<std::size_t>(size)});
  return ReadResult::kMore;
}

void WorkerOutput::hand_on(Pipe& pipe, std::string_view bytes) {
  tail_.feed(index_of(pipe.stream), bytes);
  if (pipe.prefix.has_time()) {
    const std::time_t now = std::time(nullptr);
    if (now != pipe.prefix_time) set_prefix(pipe, now);
  }
  if (pipe.file) pipe.file->append(bytes);
  if (pipe.filter) {
    std::string lines;
    pipe.filter->feed(bytes, pipe.plain_prefix, lines);
    if (!lines.empty()) logs_->filtered(pipe.stream)->append(lines);
  }
  if (pipe.plan.console == ConsoleWay::kRaw) {
    console_.lines(pipe.stream).raw(bytes);
  } else if (pipe.plan.console == ConsoleWay::kLines) {
    console_.lines(pipe.stream).feed(pipe.source, bytes, Clock::now());
  }
}

void WorkerOutput::drain(std::size_t index) {
  if (!pipes_[index]) return;
  const OutputStream stream = pipes_[index]->stream;
  ReadResult result = ReadResult::kMore;
  for (std::size_t bytes = 0; bytes < kMaxDrainBytes && result == ReadResult::kMore;
       bytes += kReadBytes) {
    result = read_once(index);
  }
  end_lines(*pipes_[index]);
  if (result == ReadResult::kEnded) end_pipe(index);
  console_.flush(stream);
  console_.log_writer().flush();
}

void WorkerOutput::worker_ended() {
  for (std::size_t i = 0; i < pipes_.size(); ++i) drain(i);
  read_direct_files();
}

void WorkerOutput::read_direct_files() {
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    if (kept_[index_of(stream)] != Kept::kInFile) continue;
    kept_[index_of(stream)] = Kept::kHere;
    const std::function<std::string()> read = [path = logs_->path(place_.local_rank, stream)] {
      return end_of_file(path);
    };
    if (const auto text = console_.log_writer().call(read)) tail_.feed(index_of(stream), *text);
  }
}

// Returns why its output to a stream can't be shown; empty: it can.
std::string WorkerOutput::unseen(OutputStream stream) const {
  switch (kept_[index_of(stream)]) {
    case Kept::kHere:
      return {};
    case Kept::kInFile:
      return concat(name_of(stream), " goes to ", logs_->path(place_.local_rank, stream), " on ",
                    host_name(), ", which can't be read now");
    case Kept::kByConsole:
      return concat(name_of(stream), " goes to ddprun's own, and is not kept");
    case Kept::kNowhere:
      return concat(name_of(stream), " is neither shown nor kept");
  }
  return {};
}

// Reads each stream's file by itself: there is no order between them, so each gets its share of the
// lines.
void WorkerOutput::look(const std::function<void(LastOutput)>& done) const {
  LastOutput now;
  std::vector<OutputStream> in_files;
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    if (kept_[index_of(stream)] == Kept::kInFile) {
      in_files.push_back(stream);
    } else if (const std::string why = unseen(stream); !why.empty()) {
      now.note += concat(now.note.empty() ? "" : "; ", why);
    }
  }
  now.lines = tail_.lines(OutputTail::kNumLines);
  if (in_files.empty()) return done(std::move(now));
  constexpr std::size_t kShare = OutputTail::kNumLines / OutputTail::kNumStreams;
  now.lines = tail_.lines(kShare);
  std::vector<std::string> paths;
  LastOutput unread = now;
  for (const OutputStream stream : in_files) {
    paths.push_back(logs_->path(place_.local_rank, stream));
    unread.note += concat(unread.note.empty() ? "" : "; ", unseen(stream));
  }
  const std::function<std::vector<std::string>()> read = [paths] {
    std::vector<std::string> texts;
    for (const std::string& path : paths) texts.push_back(end_of_file(path));
    return texts;
  };
  const std::function<void(std::vector<std::string>)> was_read =
      [now, done](const std::vector<std::string>& texts) {
        LastOutput all = now;
        for (const std::string& text : texts) {
          OutputTail tail;
          tail.feed(0, text);
          for (std::string& line : tail.lines(kShare)) all.lines.push_back(std::move(line));
        }
        if (texts.size() > 1) {
          const std::string order = "the last lines of stdout, then those of stderr";
          all.note += concat(all.note.empty() ? "" : "; ", order);
        }
        done(std::move(all));
      };
  if (!console_.log_writer().ask(read, was_read)) done(std::move(unread));
}

void WorkerOutput::close() {
  worker_ended();
  abandon();
}

void WorkerOutput::abandon() {
  for (std::size_t i = 0; i < pipes_.size(); ++i) {
    if (pipes_[i]) end_pipe(i);
  }
}

// Called at the worker's end and at its pipe's end: more may come between them, or nothing.
void WorkerOutput::end_lines(Pipe& pipe) {
  if (pipe.filter) {
    std::string lines;
    pipe.filter->end(pipe.plain_prefix, lines);
    if (!lines.empty()) logs_->filtered(pipe.stream)->append(lines);
  }
  console_.lines(pipe.stream).end(pipe.source, Clock::now());
}

void WorkerOutput::end_pipe(std::size_t index) {
  end_lines(*pipes_[index]);
  pipes_[index].reset();
  console_.log_writer().flush();
}

}  // namespace ddprun::agent
