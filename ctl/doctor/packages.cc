// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/packages.h"

#include "common/env_names.h"

namespace ddprun::doctor {
namespace {

constexpr char kVirtualEnv[] = "VIRTUAL_ENV";
constexpr char kCondaPrefix[] = "CONDA_PREFIX";

std::string parent_of(const std::string& path) {
  const std::size_t end = path.rfind('/');
  return end == std::string::npos ? "" : path.substr(0, end);
}

// "torch", "torch-2.11.0+cu128.dist-info" → "2.11.0+cu128".
std::string version_in(const std::string& name, const std::string& package) {
  constexpr std::string_view kSuffix = ".dist-info";
  if (!name.starts_with(package + "-") || !name.ends_with(kSuffix)) return "";
  const std::size_t start = package.size() + 1;
  return name.substr(start, name.size() - start - kSuffix.size());
}

// "cuda: Optional[str] = '12.8'", or what stands behind "+cu" of the version: "128" → "12.8".
std::string cuda_version(const std::string& version_py, const std::string& torch) {
  for (const std::string& line : lines_in(version_py)) {
    if (!line.starts_with("cuda")) continue;
    const std::size_t begin = line.find('\''), end = line.rfind('\'');
    if (begin != std::string::npos && end > begin) return line.substr(begin + 1, end - begin - 1);
  }
  const std::size_t at = torch.find("+cu");
  const std::string digits = at == std::string::npos ? "" : torch.substr(at + 3);
  const bool is_number = digits.find_first_not_of("0123456789") == std::string::npos;
  if (digits.size() < 2 || !is_number) return "";
  return digits.substr(0, digits.size() - 1) + "." + digits.back();
}

WorkerPackages packages_in(const Root& root, const std::string& folder) {
  WorkerPackages found;
  for (const std::string& name : root.names(folder)) {
    if (const std::string version = version_in(name, "torch"); !version.empty()) {
      found.torch = version;
      found.folder = folder;
    }
    for (const std::string cuda : {"11", "12", "13"}) {
      std::string version = version_in(name, "nvidia_nccl_cu" + cuda);
      if (version.empty()) continue;
      found.nccl = std::move(version);
      found.nccl_cuda = cuda;
    }
  }
  if (!found.torch.empty()) {
    found.cuda = cuda_version(root.read(folder + "/torch/version.py").text, found.torch);
  }
  return found;
}

}  // namespace

std::vector<std::string> package_prefixes(const Environment& environment,
                                          const std::string& own_folder) {
  std::vector<std::string> prefixes;
  const std::string python = find_variable(environment, env::kPythonExec).value_or("");
  for (const std::string& bin : {parent_of(python), own_folder}) {
    if (!parent_of(bin).empty()) prefixes.push_back(parent_of(bin));
  }
  for (const char* name : {kVirtualEnv, kCondaPrefix}) {
    if (const auto prefix = find_variable(environment, name)) prefixes.push_back(*prefix);
  }
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  return prefixes;
}

WorkerPackages find_packages(const Root& root, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    for (const std::string& python : root.names(prefix + "/lib")) {
      if (!python.starts_with("python3")) continue;
      for (const char* kind : {"/site-packages", "/dist-packages"}) {
        WorkerPackages found = packages_in(root, prefix + "/lib/" + python + kind);
        if (!found.torch.empty()) return found;
      }
    }
  }
  return {};
}

}  // namespace ddprun::doctor
