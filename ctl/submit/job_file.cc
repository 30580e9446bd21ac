// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/job_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/regular_file.h"
#include "common/suggest.h"
#include "common/toml.h"
#include "ctl/submit/job_keys.h"

namespace ddprun::submit {
namespace {

constexpr std::size_t kMostJobFileBytes = std::size_t{1} << 20;
constexpr std::size_t kMostLines = 100;  // that are told of what is wrong

class JobReader {
 public:
  explicit JobReader(JobFile& job) : job_(job) {}

  void take(const toml::table& table, const std::string& start) {
    for (const auto& [name, node] : table) {
      const std::string key = start + std::string(name.str());
      if (start == "to.") job_.places.push_back(key.substr(start.size()));
      if (const JobKey* known = find_key(key)) {
        take_value(*known, key, node);
      } else if (!begins_keys(key)) {
        refuse(name.source(),
               "unknown key " + shown_word(key) + did_you_mean(key, names_in(start)));
      } else if (const toml::table* inner = node.as_table()) {
        take(*inner, key + ".");
      } else {
        refuse(node.source(), key + " is a table: [" + key + "]");
      }
    }
  }

  void refuse(const std::string& what) { lines_.emplace_back(0, job_.path + ": " + what); }

  void throw_if_refused() {
    if (lines_.empty()) return;
    std::stable_sort(lines_.begin(), lines_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string all;
    for (std::size_t i = 0; i < std::min(lines_.size(), kMostLines); ++i) {
      all += (all.empty() ? "" : "\n") + lines_[i].second;
    }
    if (lines_.size() > kMostLines) {
      all += concat("\n", job_.path, ": … and ", lines_.size() - kMostLines, " more");
    }
    throw Error(ErrorCode::kInvalidArgument, all);
  }

 private:
  void take_value(const JobKey& known, const std::string& key, const toml::node& node) {
    const toml::table* table = node.as_table();
    if (!known.set_entry) {
      const std::string why = known.set(node, job_.base, job_);
      if (!why.empty()) refuse(node.source(), key + " " + why);
    } else if (table == nullptr) {
      refuse(node.source(), key + " wants a table of texts");
    } else {
      for (const auto& [name, each] : *table) {
        const std::string why = known.set_entry(std::string(name.str()), each, job_);
        if (!why.empty()) refuse(name.source(), key + " " + why);
      }
    }
  }

  void refuse(const toml::source_region& where, const std::string& what) {
    lines_.emplace_back(where.begin.line, concat(job_.path, ":", where.begin.line, ": ", what));
  }

  static const JobKey* find_key(const std::string& name) {
    for (const JobKey& key : job_keys()) {
      if (key.name == name || key.name == name + ".") return &key;
    }
    return nullptr;
  }
  static bool begins_keys(const std::string& name) {
    return std::any_of(job_keys().begin(), job_keys().end(),
                       [&](const JobKey& key) { return key.name.starts_with(name + "."); });
  }
  // All keys and tables that begin with `start`.
  static std::vector<std::string> names_in(const std::string& start) {
    std::vector<std::string> all;
    for (const JobKey& key : job_keys()) {
      std::string name = key.name.substr(0, key.name.find_last_not_of('.') + 1);
      for (std::size_t dot = name.find('.'); dot != std::string::npos;
           dot = name.find('.', dot + 1)) {
        all.push_back(name.substr(0, dot));
      }
      all.push_back(std::move(name));
    }
    std::erase_if(all, [&](const std::string& name) { return !name.starts_with(start); });
    return all;
  }

  JobFile& job_;
  std::vector<std::pair<std::uint32_t, std::string>> lines_;  // line number, what is wrong
};

// Flags of ddprun with which it prints something in place of a job, also shortened: what is
// ambiguous ddprun refuses, too.
bool runs_nothing(const std::string& flag) {
  if (flag == "-h") return true;
  if (!flag.starts_with("--") || flag.size() == 2) return false;
  std::string name = flag.substr(2, flag.find('=') - 2);
  std::replace(name.begin(), name.end(), '_', '-');
  constexpr std::array<std::string_view, 7> kPrinting = {
      "help", "version", "dry-run", "json", "show-config", "print-man", "print-completion"};
  return !name.empty() &&
         std::any_of(kPrinting.begin(), kPrinting.end(),
                     [&](std::string_view printing) { return printing.starts_with(name); });
}

// `table`: what the file has, also where it is wrong, and has a line of its own.
void check_whole(const JobFile& job, const toml::table& table, JobReader& reader) {
  if (!table.contains("name")) reader.refuse("it has no name: name = \"digits\"");
  if (!table.contains("command")) {
    reader.refuse("it has no command: command = [\"train\", \"--epochs=5\"]");
  } else if (!job.command.empty() && job.command.front().empty()) {
    reader.refuse("command has no program: its first text is empty");
  }
  for (const std::string& word : job.command) {
    if (word.size() <= kMaxArgumentBytes) continue;
    reader.refuse(concat("command has a text of ", word.size(),
                         " bytes: a program is given at most ", kMaxArgumentBytes,
                         " in one; name a file in its place"));
  }
  for (const std::string& flag : job.flags) {
    if (!flag.starts_with('-')) {
      reader.refuse("flags: \"" + shown_word(flag) + "\" is none; a value follows \"=\"");
    } else if (runs_nothing(flag)) {
      reader.refuse("flags: with \"" + shown_word(flag) + "\" ddprun runs nothing");
    }
  }
  if (!job.ssh.hosts.empty() && !job.ssh.hostfile.empty()) {
    reader.refuse("to.ssh has hosts and hostfile: one of them");
  }
}

std::string text_of_file(const std::string& path) {
  const RegularFile file = open_regular_file(path);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "can't read " + one_line(path) + ": " + why);
  };
  if (!file.problem.empty()) refuse(file.problem);
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t size = ::read(file.fd.get(), buffer.data(), buffer.size());
    if (size == 0) return text;
    if (size < 0) refuse(errno_text(errno));
    text.append(buffer.data(), static_cast<std::size_t>(size));
    if (text.size() > kMostJobFileBytes) refuse("it has more than 1 MiB");
  }
}

}  // namespace

JobFile JobFile::parse(std::string_view text, const std::string& path, const std::string& base) {
  JobFile job;
  job.path = one_line(path);
  job.base = base;
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                concat(job.path, ":", error.source().begin.line, ": ", toml_trouble(error)));
  }
  JobReader reader(job);
  reader.take(table, "");
  check_whole(job, table, reader);
  reader.throw_if_refused();
  return job;
}

JobFile JobFile::from_file(const std::string& path) {
  std::error_code error;
  const std::string base = std::filesystem::current_path(error).string();
  if (error) {
    throw Error(ErrorCode::kInvalidArgument,
                "the working directory is gone: start ddprunctl in one that is there");
  }
  return parse(text_of_file(path), path, base);
}

}  // namespace ddprun::submit
