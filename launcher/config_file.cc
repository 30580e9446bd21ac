// SPDX-License-Identifier: Apache-2.0
#include "launcher/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "common/suggest.h"
#include "common/toml.h"
#include "common/unique_fd.h"
#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr char kSystemFile[] = "/etc/ddprun/ddprun.toml";

// What is wrong with one key.
struct Complaint {
  int line = 0;
  std::string what;
};

[[noreturn]] void complain(const toml::source_region& where, const std::string& what) {
  throw Complaint{static_cast<int>(where.begin.line), what};
}

// In the order of the file.
[[noreturn]] void refuse_all(const std::string& path, std::vector<Complaint> complaints) {
  std::ranges::stable_sort(complaints, {}, &Complaint::line);
  std::string text;
  for (const Complaint& each : complaints) {
    text += concat(text.empty() ? "" : "\n", path, ":", each.line, ": ", one_line(each.what));
  }
  throw Error(ErrorCode::kInvalidArgument, text);
}

std::string text_of(const toml::node& node, const std::string& what) {
  const auto* value = node.as_string();
  if (!value) complain(node.source(), what);
  return value->get();
}

// As the command line would have it.
std::string value_of(const toml::node& node, const Option& option) {
  if (const auto* on = node.as_boolean(); on && option.is_switch()) return on->get() ? "1" : "0";
  if (!option.is_switch()) {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return std::to_string(number->get());
    if (const auto* number = node.as_floating_point()) return concat(number->get());
  }
  complain(node.source(),
           underscored(option.name) + " wants " +
               (option.is_switch() ? "true or false" : "a text or a number: " + option.value));
}

std::vector<std::string> known_keys() {
  std::vector<std::string> keys = {"rdzv_endpoint", "hosts", "topology"};
  for (const Option& option : option_table()) {
    if (!option.only_typed) keys.push_back(underscored(option.name));
  }
  return keys;
}

// Throws Complaint.
void take(const toml::key& key, const toml::node& node, ConfigFile& config) {
  const std::string name(key.str());
  if (name == "rdzv_endpoint") {
    config.rdzv_endpoint =
        text_of(node, "rdzv_endpoint wants \"HOST:PORT\" or \"HOST:PORT,HOST:PORT\"");
  } else if (name == "hosts") {
    const toml::array* hosts = node.as_array();
    if (!hosts) complain(node.source(), "hosts wants [\"host1\", \"host2\"]");
    for (const toml::node& host : *hosts) {
      config.hosts.push_back(text_of(host, "hosts wants [\"host1\", \"host2\"]"));
    }
  } else if (name == "topology") {
    config.topology = text_of(node, "topology wants \"SWITCH.SWITCH\", widest first");
  } else if (const Option* option = find_option(name); option && !option->only_typed) {
    config.options.push_back(
        {option->name, value_of(node, *option), static_cast<int>(key.source().begin.line)});
  } else {
    complain(key.source(), "unknown key " + name + did_you_mean(name, known_keys()));
  }
}

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

enum class Absence { kNone, kNotThere, kHidden };

// The whole file, where `absence` says that there is one.
std::string read_file(const std::string& path, Absence* absence) {
  *absence = Absence::kNone;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    const int error = errno;
    const bool is_hidden = error == EACCES && ::access(directory_of(path).c_str(), X_OK) != 0;
    if (error != ENOENT && error != ENOTDIR && !is_hidden) {
      throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": " + errno_text(error));
    }
    *absence = is_hidden ? Absence::kHidden : Absence::kNotThere;
    return {};
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": it is no regular file");
  }
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size == 0) return text;
    if (size < 0) {
      throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": " + errno_text(errno));
    }
    text.append(buffer.data(), static_cast<std::size_t>(size));
    if (text.size() > kMaxFileBytes) {
      throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": it has more than 1 MiB");
    }
  }
}

}  // namespace

ConfigFile parse_config_file(std::string_view text, const std::string& path) {
  ConfigFile config;
  config.path = path;
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    refuse_all(path,
               {{static_cast<int>(error.source().begin.line), std::string(error.description())}});
  }
  std::vector<Complaint> complaints;
  for (const auto& [key, node] : table) {
    try {
      take(key, node, config);
    } catch (const Complaint& wrong) {
      complaints.push_back(wrong);
    }
  }
  if (!complaints.empty()) refuse_all(path, std::move(complaints));
  return config;
}

std::vector<ConfigFile> load_config_files(const std::string& named,
                                          const Environment& environment) {
  std::vector<ConfigFile> files;
  std::string wrong;
  const auto parse = [&](const std::string& text, const std::string& path) {
    try {
      files.push_back(parse_config_file(text, path));
    } catch (const Error& error) {
      wrong += concat(wrong.empty() ? "" : "\n", error.what());
    }
  };
  Absence absence = Absence::kNone;
  if (!named.empty()) {
    const std::string text = read_file(named, &absence);
    if (absence != Absence::kNone) {
      throw Error(ErrorCode::kInvalidArgument,
                  "can't read " + named +
                      (absence == Absence::kHidden ? ": no permission to enter its directory"
                                                   : ": there is no such file"));
    }
    parse(text, named);
  }
  std::vector<std::string> paths;
  if (const auto xdg = find_variable(environment, env::kXdgConfigHome)) {
    paths.push_back(*xdg + "/ddprun/ddprun.toml");
  } else if (const auto home = find_variable(environment, env::kHome)) {
    paths.push_back(*home + "/.config/ddprun/ddprun.toml");
  }
  paths.emplace_back(kSystemFile);
  for (const std::string& path : paths) {
    const std::string text = read_file(path, &absence);
    if (absence == Absence::kNone) {
      parse(text, path);
    } else if (absence == Absence::kHidden) {
      files.push_back({.path = path, .rdzv_endpoint = "", .hosts = {}, .is_hidden = true});
    }
  }
  if (!wrong.empty()) throw Error(ErrorCode::kInvalidArgument, wrong);
  return files;
}

}  // namespace ddprun::launcher
