// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/job_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <functional>
#include <utility>

#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/parsed_number.h"
#include "common/regular_file.h"
#include "common/suggest.h"
#include "common/text.h"
#include "common/toml.h"
#include "common/wall_time.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::submit {
namespace {

struct JobKey {
  std::string name;  // see job_key_names()
  // Sets the value; `base` is as in JobFile::parse(). Returns "", or what it wants: "wants a text".
  std::function<std::string(const toml::node& value, const std::string& base, JobFile& job)> set;
  // For a table of names: sets one of its entries, in place of `set`. Returns the same.
  std::function<std::string(const std::string& name, const toml::node& value, JobFile& job)>
      set_entry = {};
};

using Setter = decltype(JobKey::set);
using std::chrono::seconds;
constexpr int kMostNodes = 100'000;
constexpr int kMostCount = 1'000'000;

// Returns a text of one line that isn't empty.
std::optional<std::string> line_in(const toml::node& value) {
  const auto* text = value.as_string();
  if (text == nullptr || text->get().empty()) return std::nullopt;
  const std::string& line = text->get();
  const bool is_line =
      std::none_of(line.begin(), line.end(), [](unsigned char letter) { return letter < ' '; });
  return is_line ? std::optional(line) : std::nullopt;
}

constexpr char kLine[] = "wants a text of one line";

// Sets the field to what `read` finds in the value. If it finds nothing, returns `wants`.
template <typename Field, typename Read>
Setter value_key(Field field, Read read, const char* wants) {
  return [=](const toml::node& value, const std::string&, JobFile& job) -> std::string {
    const auto found = read(value);
    if (!found) return wants;
    field(job) = *found;
    return {};
  };
}

template <typename Field>
Setter line_key(Field field) {
  return value_key(field, line_in, kLine);
}

// Returns any text without a zero byte: a program's argument, lines of a script.
std::optional<std::string> any_text_in(const toml::node& value) {
  const auto* text = value.as_string();
  if (text == nullptr || text->get().find('\0') != std::string::npos) return std::nullopt;
  return text->get();
}

template <typename Field>
Setter text_key(Field field) {
  return value_key(field, any_text_in, "wants a text");
}

// Takes one of the given words.
template <typename Field>
Setter choice_key(Field field, std::vector<std::string> words, const char* wants) {
  const auto read = [words = std::move(words)](const toml::node& value) {
    const auto text = line_in(value);
    const bool is_one = text && std::find(words.begin(), words.end(), *text) != words.end();
    return is_one ? text : std::nullopt;
  };
  return value_key(field, read, wants);
}

std::string absolute(const std::string& path, const std::string& base) {
  return path.starts_with('/') ? path : base + "/" + path;
}

template <typename Field>
Setter path_key(Field field) {
  return [field](const toml::node& value, const std::string& base, JobFile& job) -> std::string {
    const auto text = line_in(value);
    if (!text) return "wants a path";
    field(job) = absolute(*text, base);
    return {};
  };
}

template <typename Field>
Setter texts_key(Field field) {
  return [field](const toml::node& value, const std::string&, JobFile& job) -> std::string {
    constexpr char kTexts[] = "wants texts: [\"one\", \"two\"]";
    const toml::array* array = value.as_array();
    if (array == nullptr || array->empty()) return kTexts;
    std::vector<std::string> list;
    for (const toml::node& each : *array) {
      const auto text = any_text_in(each);
      if (!text) return kTexts;
      list.push_back(*text);
    }
    field(job) = std::move(list);
    return {};
  };
}

// Joins a list of texts with commas.
template <typename Field>
Setter joined_key(Field field) {
  return [field](const toml::node& value, const std::string& base, JobFile& job) -> std::string {
    std::vector<std::string> list;
    const Setter take = texts_key([&list](JobFile&) -> auto& { return list; });
    if (std::string why = take(value, base, job); !why.empty()) return why;
    field(job) = listed(list, ",");
    return {};
  };
}

template <typename Field>
Setter number_key(Field field, int least = 0, int most = kMostCount) {
  return [=](const toml::node& value, const std::string&, JobFile& job) -> std::string {
    const auto* whole = value.as_integer();
    if (whole == nullptr || whole->get() < least || whole->get() > most) {
      return concat("wants a number from ", least, " to ", most);
    }
    field(job) = static_cast<int>(whole->get());
    return {};
  };
}

template <typename Field>
Setter switch_key(Field field) {
  const auto read = [](const toml::node& value) { return value.value_exact<bool>(); };
  return value_key(field, read, "wants true or false");
}

template <typename Field>
Setter time_key(Field field, seconds least = seconds(1)) {
  return [=](const toml::node& value, const std::string&, JobFile& job) -> std::string {
    std::optional<seconds> found;
    if (const auto* whole = value.as_integer()) {
      found = seconds(whole->get());
    } else if (const auto* text = value.as_string()) {
      const auto parsed = parse_duration(text->get());
      if (parsed) found = std::chrono::ceil<seconds>(*parsed);
    }
    constexpr seconds kMost = std::chrono::days(1'000);
    if (!found || *found < least || *found > kMost) {
      return concat("wants a time of ", least.count(), " s or more: 3600, \"90m\", \"12h\"");
    }
    field(job) = *found;
    return {};
  };
}

// Returns a value written as a text or as a number, which Slurm or ddprun will parse.
std::optional<std::string> text_or_number(const toml::node& value) {
  if (const auto* whole = value.as_integer()) return std::to_string(whole->get());
  if (const auto* decimal = value.as_floating_point()) return concat(decimal->get());
  return any_text_in(value);
}

template <typename Field>
Setter figure_key(Field field) {
  return [field](const toml::node& value, const std::string&, JobFile& job) -> std::string {
    if (value.is_string() && !line_in(value)) return kLine;
    const auto text = text_or_number(value);
    if (!text) return "wants a text or a number";
    field(job) = *text;
    return {};
  };
}

bool is_variable(std::string_view name) {
  const auto fits = [](char letter, bool is_first) {
    return letter == '_' || (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z') ||
           (!is_first && letter >= '0' && letter <= '9');
  };
  if (name.empty() || !fits(name.front(), true)) return false;
  return std::all_of(name.begin(), name.end(), [&](char letter) { return fits(letter, false); });
}

std::string set_variable(const std::string& name, const toml::node& value, JobFile& job) {
  if (!is_variable(name)) {
    return "wants names of letters, digits and _, not \"" + shown_word(name) + "\"";
  }
  if (std::find(env::kOfWorkers.begin(), env::kOfWorkers.end(), name) != env::kOfWorkers.end()) {
    return "can't have " + name + ": ddprun itself sets it for each worker";
  }
  const auto text = text_or_number(value);
  if (!text) return "wants a text for " + shown_word(name);
  const std::size_t bytes = name.size() + 1 + text->size();
  if (bytes > kMaxArgumentBytes) {
    return concat("can't have ", shown_word(name), "=…, ", bytes,
                  " bytes: no program is started with more than ", kMaxArgumentBytes,
                  " in one variable; name a file in its place");
  }
  job.environment[name] = *text;
  return {};
}

std::string set_without(const toml::node& value, const std::string& base, JobFile& job) {
  std::vector<std::string> names;
  const Setter take = texts_key([&names](JobFile&) -> auto& { return names; });
  const auto is_name = [](const std::string& name) {
    return check_env_wish("-" + name).empty() && name.find('=') == std::string::npos;
  };
  if (!take(value, base, job).empty() || !std::all_of(names.begin(), names.end(), is_name)) {
    return "wants names of variables: [\"WANDB_API_KEY\"]";
  }
  job.environment_without = std::move(names);
  return {};
}

// A table of names that the user chooses: labels, volumes.
template <typename Field>
JobKey names_key(const char* key, Field field) {
  return {key, {}, [field](const std::string& name, const toml::node& value, JobFile& job) {
            const auto text = line_in(value);
            if (!text) return "wants a text for " + shown_word(name);
            field(job)[name] = *text;
            return std::string();
          }};
}

std::string set_name(const toml::node& value, const std::string&, JobFile& job) {
  const std::string name = line_in(value).value_or("");
  const auto fits = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '.' || letter == '_' || letter == '-';
  };
  constexpr std::size_t kMost = 63;
  if (name.empty() || name.size() > kMost || !std::all_of(name.begin(), name.end(), fits) ||
      std::isalnum(static_cast<unsigned char>(name.front())) == 0) {
    return "wants at most 63 letters, digits, \".\", \"_\" and \"-\", a letter or digit first";
  }
  job.name = name;
  return {};
}

std::optional<int> number_of_nodes(std::string_view text) {
  return number_within(text, 1, kMostNodes);
}

std::string set_nodes(const toml::node& value, const std::string&, JobFile& job) {
  const std::string text = text_or_number(value).value_or("");
  const std::size_t colon = text.find(':');
  const auto least = number_of_nodes(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : number_of_nodes(text.substr(colon + 1));
  if (!least || !most || *most < *least) {
    return concat("wants N or \"MIN:MAX\" with 1 ≤ MIN ≤ MAX ≤ ", kMostNodes);
  }
  job.min_nodes = *least;
  job.max_nodes = *most;
  return {};
}

std::string set_workers(const toml::node& value, const std::string&, JobFile& job) {
  const std::string text = text_or_number(value).value_or("");
  if (text != "auto" && text != "gpu" && text != "cpu" && !number_of_nodes(text)) {
    return concat("wants a number from 1 to ", kMostNodes, ", \"auto\", \"gpu\" or \"cpu\"");
  }
  job.workers_per_node = text;
  return {};
}

std::string set_endpoint(const toml::node& value, const std::string&, JobFile& job) {
  const auto text = line_in(value);
  if (!text) return kLine;
  const std::string problem = parse_servers(*text, kDefaultRendezvousPort).problem;
  if (!problem.empty()) return concat("= \"", *text, "\": ", problem);
  job.nodes.queue.rdzv_endpoint = *text;
  return {};
}

// A lambda that returns the named field: FIELD(slurm.partition).
#define FIELD(name) \
  [](JobFile & job) -> auto& { return job.name; }

std::vector<JobKey> job_and_limits() {
  return {
      {"name", set_name},
      {"command", texts_key(FIELD(command))},
      {"nodes", set_nodes},
      {"spares", number_key(FIELD(spares), 0, kMostNodes)},
      {"workers_per_node", set_workers},
      {"directory", path_key(FIELD(directory))},
      {"log_dir", path_key(FIELD(log_dir))},
      {"ddprun", line_key(FIELD(ddprun))},
      {"flags", texts_key(FIELD(flags))},
      {"environment.", {}, set_variable},
      {"environment_without", set_without},
      {"limits.memory", figure_key(FIELD(limits.memory))},
      {"limits.pids", figure_key(FIELD(limits.pids))},
      {"limits.cpuset", figure_key(FIELD(limits.cpuset))},
      {"limits.io", figure_key(FIELD(limits.io))},
      {"limits.time", time_key(FIELD(limits.time))},
      {"restarts.requeues", number_key(FIELD(restarts.requeues))},
      {"preflight.doctor", choice_key(FIELD(preflight.doctor), {"off", "fail", "warn"},
                                      "wants \"off\", \"fail\" or \"warn\"")},
      {"preflight.command", line_key(FIELD(preflight.command))},
      {"preflight.timeout", time_key(FIELD(preflight.timeout))},
  };
}

std::vector<JobKey> keys_of_places() {
  return {
      {"to.slurm.partition", line_key(FIELD(slurm.partition))},
      {"to.slurm.account", line_key(FIELD(slurm.account))},
      {"to.slurm.qos", line_key(FIELD(slurm.qos))},
      {"to.slurm.constraint", line_key(FIELD(slurm.constraint))},
      {"to.slurm.reservation", line_key(FIELD(slurm.reservation))},
      {"to.slurm.nodelist", line_key(FIELD(slurm.nodelist))},
      {"to.slurm.exclude", line_key(FIELD(slurm.exclude))},
      {"to.slurm.memory", figure_key(FIELD(slurm.memory))},
      {"to.slurm.cpus_per_node", number_key(FIELD(slurm.cpus_per_node), 1)},
      {"to.slurm.gpus_per_node", number_key(FIELD(slurm.gpus_per_node), 1)},
      {"to.slurm.exclusive", switch_key(FIELD(slurm.exclusive))},
      {"to.slurm.notice", time_key(FIELD(slurm.notice), seconds(0))},
      {"to.slurm.options", texts_key(FIELD(slurm.options))},
      {"to.slurm.setup", text_key(FIELD(slurm.setup))},
      {"to.kubernetes.image", line_key(FIELD(kubernetes.image))},
      {"to.kubernetes.kind",
       choice_key(FIELD(kubernetes.kind), {"job", "jobset"}, "wants \"job\" or \"jobset\"")},
      {"to.kubernetes.namespace", line_key(FIELD(kubernetes.kube_namespace))},
      {"to.kubernetes.context", line_key(FIELD(kubernetes.context))},
      {"to.kubernetes.image_pull_policy", line_key(FIELD(kubernetes.image_pull_policy))},
      {"to.kubernetes.image_pull_secrets", texts_key(FIELD(kubernetes.image_pull_secrets))},
      {"to.kubernetes.service_account", line_key(FIELD(kubernetes.service_account))},
      {"to.kubernetes.priority_class", line_key(FIELD(kubernetes.priority_class))},
      {"to.kubernetes.queue", line_key(FIELD(kubernetes.queue))},
      {"to.kubernetes.cpus", figure_key(FIELD(kubernetes.cpus))},
      {"to.kubernetes.memory", figure_key(FIELD(kubernetes.memory))},
      {"to.kubernetes.gpus_per_node", number_key(FIELD(kubernetes.gpus_per_node), 1)},
      {"to.kubernetes.gpu_resource", line_key(FIELD(kubernetes.gpu_resource))},
      {"to.kubernetes.shared_memory", figure_key(FIELD(kubernetes.shared_memory))},
      {"to.kubernetes.secrets", texts_key(FIELD(kubernetes.secrets))},
      names_key("to.kubernetes.volumes.", FIELD(kubernetes.volumes)),
      names_key("to.kubernetes.labels.", FIELD(kubernetes.labels)),
      names_key("to.kubernetes.node_selector.", FIELD(kubernetes.node_selector)),
      {"to.kubernetes.keep_finished", time_key(FIELD(kubernetes.keep_finished), seconds(0))},
      {"to.ssh.hosts", joined_key(FIELD(ssh.hosts))},
      {"to.ssh.hostfile", path_key(FIELD(ssh.hostfile))},
      {"to.ssh.include", joined_key(FIELD(ssh.include))},
      {"to.ssh.exclude", joined_key(FIELD(ssh.exclude))},
      {"to.ssh.ssh", line_key(FIELD(ssh.ssh))},
      {"to.nodes.endpoint", set_endpoint},
      {"to.nodes.token_file", path_key(FIELD(nodes.queue.token_file))},
      {"to.nodes.tls_ca", path_key(FIELD(nodes.queue.tls.ca))},
      {"to.nodes.tls_cert", path_key(FIELD(nodes.queue.tls.cert))},
      {"to.nodes.tls_key", path_key(FIELD(nodes.queue.tls.key))},
      {"to.nodes.slots_per_node", number_key(FIELD(nodes.slots_per_node), 1)},
  };
}

#undef FIELD

const std::vector<JobKey>& job_keys() {
  static const std::vector<JobKey> keys = [] {
    std::vector<JobKey> all = job_and_limits();
    for (const auto& [flag, value] : membership::restart_limits({})) {
      std::string name = flag;
      std::replace(name.begin(), name.end(), '-', '_');
      const auto field = [flag = flag](JobFile & job) -> auto& { return job.restarts.flags[flag]; };
      all.push_back({"restarts." + name, number_key(field)});
    }
    for (JobKey& key : keys_of_places()) all.push_back(std::move(key));
    return all;
  }();
  return keys;
}

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

  void refuse(const std::string& what) { problems_.add(what); }
  void throw_if_refused() { problems_.throw_any(); }

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
    problems_.add(where, what);
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
  // Returns all keys and tables that begin with `start`.
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
  TomlProblems problems_{job_.path};
};

// Whether ddprun prints something in place of a job with this flag, full or shortened. ddprun
// itself refuses ambiguous short forms.
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

// `table` is the file's content. Wrong values in it have been reported already.
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

}  // namespace

std::vector<std::string> job_key_names() {
  std::vector<std::string> names;
  for (const JobKey& key : job_keys()) names.push_back(key.name);
  return names;
}

JobFile JobFile::parse(std::string_view text, const std::string& path, const std::string& base) {
  JobFile job;
  job.path = one_line(path);
  job.base = base;
  const toml::table table = parsed_toml(text, path);
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
  return parse(text_of_named_file(path), path, base);
}

}  // namespace ddprun::submit
