"""networkx: a random graph, searches in it, its components and cores."""

import networkx as nx

graph = nx.gnm_random_graph(80_000, 400_000, seed=7)
print(graph.number_of_nodes(), graph.number_of_edges())
sizes = sorted(map(len, nx.connected_components(graph)))
print(len(sizes), sizes[-1])
for source in (0, 5, 77):
    lengths = nx.single_source_shortest_path_length(graph, source)
    print(source, len(lengths), sum(lengths.values()))
cores = nx.core_number(graph)
print(max(cores.values()), sum(cores.values()))
print(sum(node * (at % 7) for at, node in enumerate(nx.dfs_preorder_nodes(graph, 0))))
